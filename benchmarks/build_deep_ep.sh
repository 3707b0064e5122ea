#!/bin/sh
# Builds DeepEP V1 or V2 outside of this repository, for gpu_compare.py to measure. Nothing of it is ever committed.
#
#   sh benchmarks/build_deep_ep.sh v1 SOURCE TO          SOURCE: deepseek-ai/DeepEP at 567632d
#   sh benchmarks/build_deep_ep.sh v2 SOURCE TO NCCL     SOURCE: the same at dd758ca, with third-party/fmt;
#                                                        NCCL: folder nvidia/nccl of a wheel nvidia-nccl-cu13 >= 2.30
#
# TO is then what --deep-ep-v1 or --deep-ep-v2 takes; COMMIT=... names the commit if SOURCE is not a checkout. All files
# are compiled at once, for sm_90, and the kernels between hosts are left out: they take minutes to compile, and one host
# never calls them. What would call them stops the program. NVSHMEM comes from the wheel that torch brings. 30 to 40 s on
# 32 cores.
set -eu
if [ $# -lt 3 ] || { [ "$1" != v1 ] && [ "$1" != v2 ]; }; then
    sed -n '3,7p' "$0" >&2
    exit 2
fi
version=$1 source=$(cd "$2" && pwd) to=$3 nccl=
if [ "$version" = v2 ]; then
    [ -f "${4:-}/include/nccl_device.h" ] || { echo "v2 needs NCCL 2.30 or newer, got '${4:-}'" >&2; exit 2; }
    nccl=$(cd "$4" && pwd)
fi
PYTHON=${PYTHON:-python3}
mkdir -p "$to/objects"
to=$(cd "$to" && pwd)
CUDA_HOME=${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")}
"$PYTHON" - >"$to/paths.sh" <<'EOF'
import re, sysconfig
from pathlib import Path
import nvidia.nvshmem, torch
from torch.utils import cpp_extension
host = Path(next(iter(nvidia.nvshmem.__path__)))
print(f"nvshmem='{host}'")
print(f"nvshmem_lib='{sorted((host / 'lib').glob('libnvshmem_host.so*'))[0].name}'")
includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
print("torch_includes='" + " ".join(f"-isystem {path}" for path in includes) + "'")
print(f"torch_lib='{Path(torch.__file__).parent / 'lib'}'")
print("standard='" + re.search(r"-std=c\+\+\d+", Path(cpp_extension.__file__).read_text()).group() + "'")
print(f"suffix='{sysconfig.get_config_var('EXT_SUFFIX')}'")
EOF
. "$to/paths.sh"

cd "$source"
case $version in
    v1)
        module=deep_ep_cpp place=$to
        files="csrc/deep_ep.cpp csrc/kernels/runtime.cu csrc/kernels/layout.cu csrc/kernels/intranode.cu
            csrc/kernels/internode_ll.cu"
        includes="-Icsrc"
        ;;
    v2)
        module=_C place=$to/deep_ep
        files="csrc/python_api.cpp csrc/kernels/backend/nccl.cu csrc/kernels/backend/nvshmem.cu
            csrc/kernels/backend/cuda_driver.cu csrc/kernels/legacy/layout.cu"
        includes="-Ideep_ep/include -Ithird-party/fmt/include -I$nccl/include"
        ;;
esac
cp -r deep_ep "$to/"
common="$includes -I$nvshmem/include -I$CUDA_HOME/include -I$CUDA_HOME/include/cccl $torch_includes $standard -O3
    -DDISABLE_AGGRESSIVE_PTX_INSTRS -DTORCH_API_INCLUDE_EXTENSION_H -DTORCH_EXTENSION_NAME=$module"
nvcc_only="-gencode=arch=compute_90,code=sm_90 -rdc=true --expt-relaxed-constexpr --extended-lambda
    --ptxas-options=--register-usage-level=10 --diag-suppress=128,2417 -w -Xcompiler -fPIC,-O3"
jobs= objects= device=
for file in $files; do
    object=$to/objects/$(basename "$file").o
    objects="$objects $object"
    case $file in
        *.cu)
            device="$device $object"
            "$CUDA_HOME/bin/nvcc" -c $file -o $object $common $nvcc_only & ;;
        *) c++ -c $file -o $object $common -fPIC -w & ;;
    esac
    jobs="$jobs $!"
done
for job in $jobs; do wait "$job"; done
"$CUDA_HOME/bin/nvcc" -dlink $device -o "$to/objects/linked.o" -gencode=arch=compute_90,code=sm_90 -Xcompiler -fPIC \
    "-L$nvshmem/lib" -lnvshmem_device -w
link() {
    c++ -shared -o "$place/$module$suffix" $objects "$to/objects/linked.o" "$@" "-L$CUDA_HOME/lib64" "-L$torch_lib" \
        -lc10 -lc10_cuda -ltorch -ltorch_cpu -ltorch_cuda -ltorch_python -lcudart -lcuda -lnvrtc \
        "-L$nvshmem/lib" "-l:$nvshmem_lib" -l:libnvshmem_device.a "-Wl,-rpath,$nvshmem/lib:$torch_lib" \
        ${nccl:+"-L$nccl/lib" -l:libnccl.so.2 "-Wl,-rpath,$nccl/lib"} "-L$CUDA_HOME/lib64/stubs"
}
link
# What the files that were left out would define, as functions that stop the program.
nm -D -u "$place/$module$suffix" | sed -n 's/^ *U \(_ZN7deep_ep[A-Za-z0-9_]*\)$/void \1(void) { abort(); }/p' \
    >"$to/objects/names"
{ echo '#include <stdlib.h>'; cat "$to/objects/names"; } >"$to/objects/left_out.c"
cc -c -fPIC "$to/objects/left_out.c" -o "$to/objects/left_out.o"
link "$to/objects/left_out.o"
echo "${COMMIT:-$(git -C "$source" rev-parse --short=12 HEAD)}" >"$to/commit"
echo "$version: $place/$module$suffix, $(wc -l <"$to/objects/names") functions left out"
