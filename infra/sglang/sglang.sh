#!/usr/bin/env bash
# A real SGLang server without a GPU, for tests and laptops, on loopback only.
#
#   sglang.sh setup                 the environment, once (6.6 GB; a minute where torch was fetched before)
#   sglang.sh model KIND FOLDER [SEED]
#                                   a tiny model of random weights with tokenizer and chat template;
#                                   KIND is qwen2, qwen3 or qwen3-moe
#   sglang.sh start MODEL [OPTION...]
#                                   a server of a Hugging Face folder; returns when it takes calls (15-60 s).
#                                   Options go to SGLang, after (so instead of) those set here
#   sglang.sh status                where it listens; exit status 1 unless it takes calls
#   sglang.sh kill                  kill -9 of all its processes, for those who test what follows
#   sglang.sh stop                  end it
#
# SGLANG_PORT       30000; several servers side by side: another port each
# SGLANG_HOME_LOCAL folder of environment, logs and process ids (infra/sglang/.sglang)
# SGLANG_VENV       folder of the environment ($SGLANG_HOME_LOCAL/venv)
# SGLANG_PYTHON     the Python 3.11 that it is made with (python3.11, else python3)
# SGLANG_THREADS    of the model's arithmetic (1)
# SGLANG_START_S    seconds until a server must take calls (240; a loaded machine takes ten times as long)
#
# With a GPU (one, then eight as one engine), no part of this script is needed:
#   pip install sglang==0.5.23
#   python -m sglang.launch_server --model-path MODEL --port 30000 --enable-metrics --skip-server-warmup \
#     --enable-fp32-lm-head
#   python -m sglang.launch_server --model-path MODEL --port 30000 --enable-metrics --tp-size 8 \
#     --enable-fp32-lm-head --mem-fraction-static 0.85 --host 0.0.0.0 --api-key KEY
# Logits in float32, as the trainer's are: in bfloat16 they are up to 1/16 apart, and so are their logprobs.
# A mixture of experts whose routing is to be kept: --enable-return-routed-experts.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${SGLANG_HOME_LOCAL:-$here/.sglang}
venv=${SGLANG_VENV:-$home/venv}
port=${SGLANG_PORT:-30000}
python=${SGLANG_PYTHON:-$(command -v python3.11 || echo python3)}
place=$home/$port  # of one server: its log and its process id
start_s=${SGLANG_START_S:-240}

die() { echo "sglang.sh: $*" >&2; exit 1; }
text() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }
usage() { text >&2; exit 2; }
takes_calls() { curl -sf -m 2 -o /dev/null "http://127.0.0.1:$port/ready"; }
listens() { (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; }

group() {  # of the server's processes, all of them: it is started as the leader of a session
  local pid; pid=$(cat "$place/pid" 2> /dev/null) || return 1
  [ -n "$(ps -o pid= -g "$pid" 2> /dev/null)" ] || return 1
  echo "$pid"
}

setup() {
  local mark=$venv/installed now packages
  now=$(cat "$here/requirements.txt" "$here/sgl_kernel.py" "$here/sglang.sh" | sha256sum)
  [ "$(cat "$mark" 2> /dev/null)" != "$now" ] || return 0
  command -v "$python" > /dev/null || die "$python is missing; set SGLANG_PYTHON to a Python 3.11 with venv"
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
    || die "$python is no Python 3.11, which SGLang's pinned packages are built for; set SGLANG_PYTHON"
  mkdir -p "$home"
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" \
    || die "$python has no venv; as root: apt-get install -y python3-venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.9
  "$venv/bin/uv" pip install --quiet --compile-bytecode --no-deps --python "$venv/bin/python" \
    --requirement "$here/requirements.txt"
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  mkdir -p "$packages/sgl_kernel"
  cp "$here/sgl_kernel.py" "$packages/sgl_kernel/__init__.py"
  # Prefill/decode on CPUs: places of keys and values are given to Mooncake as they are; with `True` SGLang
  # moves them through pinned memory first, which asks for CUDA.
  sed -i 's/^\( *supports_host_tensor_indices = \)True$/\1False/' \
    "$packages/sglang/srt/disaggregation/mooncake/conn.py"
  # Routed experts: a host's buffer is registered with CUDA, which here nothing reads it through.
  sed -i '/^    if pin_memory:$/{N;/_cuda_host_register/s/:/ and torch.cuda.is_available():/}' \
    "$packages/sglang/srt/mem_cache/pool_host/common.py"
  # Mooncake writes weights where they lie: on a CPU it cannot ask CUDA where that is.
  sed -i 's/if importlib.util.find_spec("torch") is None:$/if not __import__("torch").cuda.is_available():/' \
    "$packages/sglang/srt/model_loader/remote_instance_weight_loader_utils.py"
  echo "$now" > "$mark"
}

start() {
  local model=$1 pid; shift
  [ -f "$model/config.json" ] \
    || die "$model has no config.json; name a Hugging Face folder, or make one: $0 model"
  [ -f "$venv/installed" ] || die "no environment in $venv; first: $0 setup"
  ! pid=$(group) || die "a server is there already on port $port, as process $pid; first: $0 stop"
  ! listens || die "port $port is taken; set SGLANG_PORT to a free one"
  mkdir -p "$place"
  (
    export SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
    export OMP_NUM_THREADS=${SGLANG_THREADS:-1} MOONCAKE_PROTOCOL=tcp MC_FORCE_TCP=1
    cd "$place" && exec setsid "$venv/bin/python" -W ignore -m sglang.launch_server \
      --model-path "$model" --host 127.0.0.1 --port "$port" --device cpu --dtype bfloat16 \
      --attention-backend torch_native --sampling-backend pytorch --disable-overlap-schedule --page-size 1 \
      --mem-fraction-static 0.7 --max-total-tokens 32768 --max-running-requests 16 --context-length 4096 \
      --skip-server-warmup --enable-metrics --sleep-on-idle --log-level warning --enable-fp32-lm-head "$@"
  ) > "$place/out.log" 2>&1 < /dev/null &
  echo $! > "$place/pid"
  local until=$((SECONDS + start_s))
  until takes_calls; do
    if ! group > /dev/null || [ $SECONDS -gt $until ]; then
      tail -15 "$place/out.log" | cut -c1-400 >&2
      die "the server on port $port does not take calls: see above, all of it in $place/out.log"
    fi
    sleep 0.3
  done
  echo "SGLang on http://127.0.0.1:$port serves $model; its log is $place/out.log"
}

end() {  # end SIGNAL: all its processes, and none is left behind
  local pid; pid=$(group) || { rm -f "$place/pid"; return 0; }
  kill "-$1" -- "-$pid" 2> /dev/null || true
  for _ in $(seq 75); do group > /dev/null || break; sleep 0.2; done
  kill -KILL -- "-$pid" 2> /dev/null || true
  while group > /dev/null; do sleep 0.05; done
  rm -f "$place/pid"
}

status() {
  local pid; pid=$(group) || { echo "no server on port $port"; exit 1; }
  takes_calls || { echo "process $pid on port $port takes no calls now"; exit 1; }
  echo "SGLang on http://127.0.0.1:$port, process $pid"
}

case "${1:-} $#" in
  "setup 1") setup ;;
  "model 3" | "model 4") shift; [ -f "$venv/installed" ] || die "no environment in $venv; first: $0 setup"
    exec "$venv/bin/python" "$here/models.py" "$@" ;;
  "start 1") usage ;;
  "start "*) model=$(realpath -m "$2"); shift 2; start "$model" "$@" ;;
  "status 1") status ;;
  "kill 1") group > /dev/null || die "no server on port $port"; end KILL ;;
  "stop 1") end TERM ;;
  "--help 1") text ;;
  *) usage ;;
esac
