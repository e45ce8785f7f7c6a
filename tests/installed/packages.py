"""Goal: the Debian packages install by dpkg into a root of their own, and work there: the program, the service's unit,
and a project against the -dev package.

The root is an overlay on this system, in a mount namespace: dpkg reads this system's database, so it checks the
dependencies against Debian's packages, and nothing of this system changes. The source and build trees are hidden there.
Needs root, and a file system in memory of 2 GiB.

Run as: packages.py BUILD_FOLDER SOURCE_FOLDER TORCH_FOLDER
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from install import check_headers, run

NAMES = {"libtroupe", "libtroupe-dev", "troupe"}

# $1 an empty folder, $2 the packages, $3 LibTorch, $4 and $5 what is hidden.
ROOT = """
set -e
mount -t tmpfs -o size=2g tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/system"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/system"
mkdir -p "$1/system/packages" "$1/system/torch"
mount --bind "$2" "$1/system/packages"
mount --bind "$3" "$1/system/torch"
mount -o remount,bind,ro "$1/system/torch"
for hidden in "$4" "$5"; do [ ! -d "$1/system$hidden" ] || mount -t tmpfs tmpfs "$1/system$hidden"; done
mount -t proc proc "$1/system/proc"
mount --rbind /dev "$1/system/dev"
rm -rf "$1/system/usr/local/lib/troupe"
exec chroot "$1/system" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C bash -euo pipefail -c "$6"
"""

STORY = r"""
cd /root
# Links of systemd are changed here; what it would do with a service is written down.
mkdir -p asking /run/systemd/system
cat >asking/systemctl <<'EOF'
#!/bin/sh
case "$*" in *able*) SYSTEMD_OFFLINE=1 exec /usr/bin/systemctl "$@" ;; *) echo "$*" >>"$HOME/asked" ;; esac
EOF
chmod +x asking/systemctl
has_asked() { test "$(cat asked)" = "$1" || { cat asked; exit 1; }; rm asked; }
export PATH=$PWD/asking:$PATH
dpkg --install /packages/*.deb
test ! -e asked
! troupe --version 2>refused || exit 1
grep -q "libc10.so" refused
# In the place of PyPI: a Python whose environments have LibTorch, unless it is out of reach.
cat >asking/python3 <<'EOF'
#!/bin/sh
rm -rf "$4" && mkdir -p "$4/bin" "$4/lib/python3.11/site-packages"
printf '#!/bin/sh\n[ -e "$HOME/reach" ] && ln -s /torch "%s/lib/python3.11/site-packages"\n' "$4" >"$4/bin/python3"
chmod +x "$4/bin/python3"
EOF
chmod +x asking/python3
touch reach
for again in 1 2; do
  troupe-torch
  troupe --version
  test "$(cd /usr/local/lib/troupe && ls -d venv*/lib/*/*/torch | wc -l)" = 1
done
rm reach
! troupe-torch || exit 1
troupe --version
test "$(ls /usr/local/lib/troupe | wc -l)" = 2
rm asking/python3
troupe-torch /torch
troupe --version
troupe doctor >/dev/null
troupe fit --run-dir run --data synthetic --set data.samples=256 --set data.evaluation_samples=40 --batch-size 8 \
  --max-steps 6 --progress never --placement processes
grep -o '"status":"finished"' run/result.json
troupe_service --help | grep -q -- --token-file
test -s /usr/share/man/man1/troupe-fit.1 -a -s /usr/share/man/man1/troupe_service.1
test -s /usr/share/bash-completion/completions/troupe
! command -v systemd-analyze >/dev/null || systemd-analyze verify /lib/systemd/system/troupe.service
systemctl enable troupe
link=/etc/systemd/system/multi-user.target.wants/troupe.service
dpkg --install /packages/troupe_*.deb >upgraded
has_asked $'daemon-reload\ntry-restart troupe'
! grep "needs LibTorch" upgraded || exit 1
troupe init own
cmake -G Ninja -S own -B tree -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-Og >/dev/null
grep -q '^Troupe_DIR:PATH=/usr/lib/' tree/CMakeCache.txt
cmake --build tree --target train >/dev/null
tree/train fit --run-dir own_run --max-epochs 1 --set data.samples=256 --placement processes --progress never
grep -o '"status":"finished"' own_run/result.json
dpkg --remove troupe
has_asked $'stop troupe\ndaemon-reload'
test -L $link
dpkg --purge libtroupe-dev libtroupe troupe
test ! -L $link
test ! -e /usr/bin/troupe -a ! -e /usr/include/troupe
echo all of it works
"""


def field(package, name):
    return run("dpkg-deb", "--field", package, name).strip()


def check_contents(packages, source, folder):
    """Each file is where it belongs, and the dependencies are those of the linked libraries."""
    files = {name: run("dpkg-deb", "--contents", path) for name, path in packages.items()}
    for text in files.values():
        assert all(line.split()[5].startswith("./usr/") for line in text.splitlines()), text
    run("dpkg-deb", "--extract", packages["libtroupe-dev"], folder)
    check_headers(os.path.join(folder, "usr/include"), source)
    for library in ("actors", "main"):
        assert re.search(rf"/usr/lib/\S*libtroupe_{library}\.a\n", files["libtroupe"]), files["libtroupe"]
    assert "/usr/include/troupe/session.hpp\n" in files["libtroupe-dev"]
    assert "/usr/include/troupe/main.hpp\n" in files["libtroupe-dev"]
    assert "TroupeConfig.cmake\n" in files["libtroupe-dev"] and ".a\n" not in files["libtroupe-dev"]
    assert "./usr/bin/troupe\n" in files["troupe"] and "/system/troupe.service\n" in files["troupe"]
    run("dpkg-deb", "--extract", packages["troupe"], folder)
    with open(os.path.join(folder, "usr/lib/systemd/system/troupe.service"), encoding="utf-8") as f:
        unit = f.read().splitlines()
    # By default systemd stops a service one process of which the kernel has killed for memory: all of its jobs.
    assert "OOMPolicy=continue" in unit, unit
    # By default it tries 5 times within a second, and gives up.
    assert "RestartSec=5" in unit, unit
    version = field(packages["troupe"], "Version")
    assert f"libtroupe (= {version})" in field(packages["libtroupe-dev"], "Depends")
    needs = field(packages["troupe"], "Depends")
    for library in ("libc6", "libstdc++6", "libcaf-core0.17", "libfmt9", "libjemalloc2", "libxxhash0", "zlib1g"):
        assert re.search(rf"\b{re.escape(library)}\b", needs), needs
    assert "torch" not in needs, needs


def check_tools(build, folder):
    """Without dpkg-shlibdeps a package would have no dependencies, so there is none."""
    hidden = 'mount --bind /dev/null "$(command -v dpkg-shlibdeps)"; exec cpack --config "$0/CPackConfig.cmake" -B "$1"'
    done = subprocess.run(["unshare", "--mount", "bash", "-ec", hidden, build, folder], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode != 0 and "install dpkg-dev" in done.stdout, done.stdout
    assert not glob.glob(os.path.join(folder, "*.deb")), os.listdir(folder)


def main():
    build, source, torch = map(os.path.realpath, sys.argv[1:])
    alone = ["unshare", "--mount", "true"]
    if not shutil.which("dpkg") or not shutil.which("unshare") or subprocess.run(alone, check=False).returncode != 0:
        print("SKIPPED: installing packages needs dpkg, and the right to make a mount namespace with unshare")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        made, root = os.path.join(folder, "made"), os.path.join(folder, "system")
        os.mkdir(root)
        check_tools(build, os.path.join(folder, "refused"))
        run("cpack", "--config", os.path.join(build, "CPackConfig.cmake"), "-B", made)
        shutil.rmtree(os.path.join(made, "_CPack_Packages"))
        packages = {field(path, "Package"): path for path in glob.glob(os.path.join(made, "*.deb"))}
        assert packages.keys() == NAMES, packages
        check_contents(packages, source, os.path.join(folder, "extracted"))
        inside = ["unshare", "--mount", "bash", "-c", ROOT, "root", root, made, torch, source, build, STORY]
        done = subprocess.run(inside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(done.stdout)
        if done.returncode == 32 and "overlay" in done.stdout:
            print("SKIPPED: this system mounts no overlay")
            sys.exit(77)
        assert done.returncode == 0 and done.stdout.endswith("all of it works\n"), done.returncode


if __name__ == "__main__":
    main()
