"""Goal: equal fits end with equal weights, also when two rank threads call LibTorch's first vector function at once."""

import os
import sys

from troupe_program import check_code, check_equal, fit, main, result_of

SKIPPED = 77


def weights_of(run, *arguments, **variables):
    check_code(fit(run, *arguments, **variables), 0)
    return result_of(run)["weights_digest"]


def story_a_race_for_the_first_vector_function_does_not_change_the_weights(folder):
    adam = ["--optimizer", "adam", "--set", "model.dropout=0.2"]
    early_reader = os.environ["TROUPE_EARLY_READER"]
    expected = weights_of(os.path.join(folder, "plain"), *adam)
    for step, fused in (("fused", "true"), ("separate", "false")):
        raced = weights_of(os.path.join(folder, step), *adam, "--set", f"strategy.fused_step={fused}",
                           LD_PRELOAD=early_reader)
        check_equal(raced, expected, f"{step} step")


if __name__ == "__main__":
    with open("/proc/cpuinfo", encoding="utf-8") as processor:
        if " avx2 " not in processor.read():
            print("SKIPPED: the kernels that the race selects need a processor with AVX2")
            sys.exit(SKIPPED)
    main(globals())
