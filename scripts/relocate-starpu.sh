#!/usr/bin/env bash
# relocate-starpu.sh <libstarpu>: StarPU warns when the folder of models that it was installed with is not there. In a copy
# for other machines the folder becomes /usr/share, which has none of them either, is on every machine, and is as long.
set -euo pipefail
library=$1
# Read to the end: strings must not be stopped in the middle.
folder=$(strings "$library" | awk '/\/perfmodels\/sampling$/ && !found++')
[[ $folder ]] || { echo "$library: names no folder of models" >&2 && exit 1; }
there=/usr/share
while ((${#there} < ${#folder})); do there+=/; done
LC_ALL=C sed -i "s#$folder#$there#g" "$library"
