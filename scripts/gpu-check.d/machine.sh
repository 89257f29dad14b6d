# gpu-check: installed software, and the paths of NVRTC, CUDA's headers and NCCL. Sourced.

if command -v nvidia-smi > /dev/null; then
    gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1)
else
    gpu="no nvidia-smi"
fi
say "GPU       $gpu"
field gpu "$(text "$gpu")"

# NVRTC and the headers may exist only in Python wheels.
shopt -s nullglob
packages=()
if command -v python3 > /dev/null; then
    prefix=$(dirname "$(dirname "$(command -v python3)")")
    packages=("$prefix"/lib/python3*/{site,dist}-packages/nvidia)
fi
libraries=(/usr/local/cuda/lib64)
for folder in "${packages[@]}"; do
    libraries+=("$folder"/cuda_nvrtc/lib "$folder"/cu1[0-9]/lib "$folder"/nccl/lib)
    for root in "$folder"/cuda_runtime "$folder"/cu1[0-9]; do
        [ -n "${CUDA_PATH:-}" ] || [ -e /usr/local/cuda/include/cuda_runtime.h ] ||
            [ ! -e "$root/include/cuda_runtime.h" ] || export CUDA_PATH=$root
    done
done
for library in "${libraries[@]}"; do
    [ ! -e "$library" ] || LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$library"
done
[ -z "${LD_LIBRARY_PATH:-}" ] || export LD_LIBRARY_PATH

"$program" devices > "$out/logs/devices.log" 2>&1
sed 's/^/  /' "$out/logs/devices.log" | tee -a "$table"
field devices "$(text "$(cat "$out/logs/devices.log")")"
field nccl "$(text "$(grep -m1 '^nccl' "$out/logs/devices.log")")"
python=$(python3 -c 'import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, torch.cuda.is_available())' 2> /dev/null || echo "no PyTorch")
say "  $python"
field pytorch "$(text "$python")"
say ""
