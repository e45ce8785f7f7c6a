// Measures MPI_Allreduce(sum, float32) in place, without Troupe. Runs under mpirun. Arguments: sizes in bytes. Prints
// one JSON object per size: the seconds per call of the slowest rank.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static double batch(float* data, int count, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int i = 0; i < calls; ++i)
    MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  double seconds = (MPI_Wtime() - begin) / calls;
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 1; i < argc; ++i) {
    const long bytes = atol(argv[i]);
    const int count = (int)(bytes / (long)sizeof(float));
    float* data = malloc((size_t)bytes);
    for (int k = 0; k < count; ++k) data[k] = (float)(rank + 1);
    MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int k = 0; k < count; ++k) {
      if (data[k] != (float)(ranks * (ranks + 1) / 2)) MPI_Abort(MPI_COMM_WORLD, 1);
      data[k] = 0;
    }
    const double trial = batch(data, count, 3);
    int calls = (int)(0.05 / trial);
    calls = calls < 3 ? 3 : calls > 20000 ? 20000 : calls;
    const double seconds = batch(data, count, calls);
    if (rank == 0) printf("{\"bytes\": %ld, \"seconds\": %.9g}\n", bytes, seconds);
    free(data);
  }
  MPI_Finalize();
  return 0;
}
