"""Goal: a job of the service whose data do not fit its request fails with the field and its right value."""

import os

from troupe_program import check_equal, check_in, main
from troupe_service import Service


def story_a_csv_job_with_wrong_sizes_fails_with_the_right_ones(folder):
    path = os.path.join(folder, "my.csv")
    with open(path, "w", encoding="utf-8") as file:
        file.write("a,b,c,class\n")
        for number in range(64):
            file.write(f"{number % 3}.5,{number % 5}.5,1.5,{number % 4}\n")
    service = Service(os.path.join(folder, "place"))
    right = {"name": "csv", "path": path, "features": 3, "classes": 4}
    options = {"ranks": 2, "max_epochs": 1, "batch_size": 8, "placement": "threads", "max_restarts": 0}
    for number, (data, part) in enumerate((
            ({**right, "features": 5}, f"data.features is 5, but a sample of {path} has 3 of them: give 3"),
            ({**right, "classes": 3}, f"data.classes is 3, but a target of {path} is 3: give 4 or more"))):
        service.start({"data": data, "options": options}, f"wrong-{number}")
        failed = service.wait_for_end(f"wrong-{number}")
        check_equal(failed["state"], "failed")
        check_in(part, failed["result"]["failure"]["what"])
    service.start({"data": right, "options": options}, "right")
    check_equal(service.wait_for_end("right")["state"], "finished")
    check_equal(service.end(), 0)


if __name__ == "__main__":
    main(globals())
