#!/bin/sh
# Removes from the virtual environment $1 what a running service never opens: test suites, type stubs, build tools, C++
# headers, the test programs in torch's wheel. (Building an extension needs the headers: build it before this.)
# hf_xet is huggingface_hub's optional faster download, 11 MB; without it downloads use plain HTTPS.
set -eu
cd "$1"/lib/python*/site-packages
rm -rf hf_xet hf_xet-*.dist-info numpy/distutils numpy/f2py numpy/_core/include
find numpy -type d -name tests -prune -exec rm -rf {} +
find . -type f \( -name '*.pyi' -o -name '*.a' \) -delete
if [ -d torch ]; then
    rm -rf torch/test torch/include torch/share
    rm -f torch/lib/*test*.so torch/lib/libbackend_with_compiler.so torch/lib/libaoti_custom_ops.so
    find torch/bin -type f ! -name torch_shm_manager -delete
fi
