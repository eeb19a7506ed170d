# Baton's images, one target each: `scheduler` (no torch), `executor` (CPU), `executor-gpu`. compose.yaml builds them.
#
#   docker build --target scheduler -t baton-scheduler .
#   docker build --target executor -t baton-executor .
#
# torch comes from TORCH_INDEX_URL. If that cannot be reached, put the wheels into a folder and name it as the build
# context `wheels` (with compose: BATON_WHEELS=/opt/wheels BATON_TORCH_INDEX_URL= docker compose build):
#
#   docker build --target executor --build-context wheels=/opt/wheels --build-arg TORCH_INDEX_URL= -t baton-executor .
#
# Python packages are layers of their own, made only from their names in pyproject.toml and constraints.txt: a change
# of our code, or of the rest of pyproject.toml, does not install them again.

ARG PYTHON_IMAGE=python:3.11-slim
ARG CUDA_IMAGE=nvidia/cuda:13.0.2-base-ubuntu24.04

FROM scratch AS wheels

# ---- What to install: the names of the dependencies alone, so that only a change of these invalidates later layers.
FROM ${PYTHON_IMAGE} AS requirements
WORKDIR /requirements
COPY pyproject.toml constraints.txt ./
RUN python - <<'PYTHON'
import pathlib
import tomllib

project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
gpu = [*extras["executor"], *(name for name in extras["gpu"] if not name.startswith("baton-llm["))]
names_of = {"base": project["dependencies"], "otel": extras["otel"], "executor": extras["executor"], "gpu": gpu}
for file, names in names_of.items():
    pathlib.Path(f"{file}.txt").write_text("\n".join(names) + "\n")
pins = pathlib.Path("constraints.txt").read_text().splitlines()
# Each CUDA build of torch takes one version of triton, and says which.
gpu_pins = (pin for pin in pins if not pin.startswith(("torch==", "triton==")))
pathlib.Path("gpu-pins.txt").write_text("\n".join(gpu_pins) + "\n")
PYTHON

# ---- Our own code, installed over an environment that has its dependencies.
FROM ${PYTHON_IMAGE} AS code
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN --mount=type=cache,target=/root/.cache/pip pip install --quiet 'setuptools>=77'
WORKDIR /source
COPY . .
# For `--version` and `baton status`: the commit (git rev-parse HEAD), as no .git comes with the files.
ARG BATON_COMMIT=
RUN pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /dist .
RUN python -m venv --without-pip /opt/baton \
 && pip --python /opt/baton/bin/python install --quiet --no-index --no-deps --no-compile --prefix /code /dist/*.whl
# The scheduler reads the demo model's tokenizer, never its weights.
FROM code AS scheduler-code
RUN rm /code/lib/python*/site-packages/common/demo_model/*.safetensors

# ---- The environments.
FROM ${PYTHON_IMAGE} AS scheduler-env
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv --without-pip /opt/baton
COPY --from=requirements /requirements/base.txt /requirements/otel.txt /requirements/constraints.txt /requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/baton/bin/python install --quiet --no-compile \
        --requirement /requirements/base.txt --requirement /requirements/otel.txt \
        --constraint /requirements/constraints.txt
COPY deploy/trim.sh /
RUN sh /trim.sh /opt/baton

FROM scheduler-env AS executor-env
COPY --from=requirements /requirements/executor.txt /requirements/
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=wheels,target=/wheels \
    PIP_EXTRA_INDEX_URL=${TORCH_INDEX_URL} \
    pip --python /opt/baton/bin/python install --quiet --no-compile --find-links /wheels \
        --requirement /requirements/executor.txt --constraint /requirements/constraints.txt \
 && sh /trim.sh /opt/baton

# ---- The bytecode of exactly the modules, Python's own included, that a service imports. The service cannot write the
# bytecode itself, and python:slim comes without: an executor's imports take 2 s with bytecode, and 5 s without.
FROM scheduler-env AS scheduler-bytecode
COPY --from=scheduler-code /code /opt/baton
RUN PYTHONPYCACHEPREFIX=/bytecode PATH=/opt/baton/bin:$PATH timeout 120 sh -c \
    'baton keys init --dir /tmp/keys --executor x; \
     baton-keeper --socket /tmp/keeper/keeper.sock & keeper=$!; \
     OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:9 baton-scheduler --no-journal & until baton status; do sleep 0.5; done; \
     baton keeper status --socket /tmp/keeper/keeper.sock && kill $keeper $! && wait $!'

FROM executor-env AS executor-bytecode
COPY --from=code /code /opt/baton
RUN PYTHONPYCACHEPREFIX=/bytecode /opt/baton/bin/python -c \
    'import executor_svc.__main__, executor_svc.service.process, executor_svc.startup, executor_svc.keeper.finding'

# ---- The C++ kernels, for every processor: the executor's image has no compiler. The executor finds them if its
# sources and its torch are the same, and torch lies at the same path.
FROM executor-env AS executor-kernels
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY --from=code /code/lib/python*/site-packages/kernels kernels
RUN XDG_CACHE_HOME=/cache /opt/baton/bin/python -m kernels.cpu --all

# ---- The images.
FROM ${PYTHON_IMAGE} AS service
# A volume that is mounted empty gets owner and mode from the folder in the image: any user may keep files there (docker
# run --user, OpenShift), and only its own, by the sticky bit. Such users have no other home than HOME.
RUN useradd --uid 10001 --no-create-home --home-dir /tmp baton \
 && install --directory --mode=1777 \
        /etc/baton/keys /etc/baton/keys/scheduler /etc/baton/keys/executors /run/baton /var/lib/baton
ENV HOME=/tmp PATH=/opt/baton/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPYCACHEPREFIX=/opt/bytecode \
    BATON_KEYS_DIR=/etc/baton/keys
USER baton
WORKDIR /tmp

FROM service AS scheduler
COPY --from=scheduler-env /opt/baton /opt/baton
COPY --from=scheduler-code /code /opt/baton
COPY --from=scheduler-bytecode /bytecode /opt/bytecode
COPY deploy/keeper_health.py /opt/baton/
EXPOSE 8000
CMD ["baton-scheduler", "--host", "0.0.0.0"]

FROM service AS executor
COPY --from=executor-env /opt/baton /opt/baton
COPY --from=code /code /opt/baton
COPY --from=executor-bytecode /bytecode /opt/bytecode
COPY --from=executor-kernels /cache /opt/cache
COPY deploy/executor_health.py deploy/executor_drain.py /opt/baton/
# This cache is read-only for the service, so HF_HOME keeps downloads of models where they would be without it.
ENV XDG_CACHE_HOME=/opt/cache HF_HOME=/tmp/.cache/huggingface
CMD ["baton-executor"]

# ---- The GPU image. Our tests do not build it: they reach neither its base image nor a CUDA torch (docs/gpu.md).
# torch's wheels bring CUDA, so the base needs none; triton compiles its launchers with gcc when it is first used.
# flash-attn has no wheels on PyPI: FLASH_ATTN is the URL of one, or `flash-attn` if it lies in the context `wheels`.
# If FLASH_ATTN is empty, the image has no flash-attn.
FROM ${CUDA_IMAGE} AS executor-gpu
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-venv python3-dev gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/baton \
 && useradd --uid 10001 --no-create-home --home-dir /tmp baton \
 && install --directory --mode=1777 /etc/baton/keys /etc/baton/keys/executors /run/baton
ENV HOME=/tmp PATH=/opt/baton/bin:$PATH PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY --from=requirements /requirements/base.txt /requirements/gpu.txt /requirements/gpu-pins.txt /requirements/
ARG GPU_TORCH="torch==2.11.0"
ARG GPU_TORCH_INDEX_URL=https://download.pytorch.org/whl/cu130
ARG FLASH_ATTN=
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=wheels,target=/wheels \
    PIP_EXTRA_INDEX_URL=${GPU_TORCH_INDEX_URL} pip install --quiet --find-links /wheels --constraint \
        /requirements/gpu-pins.txt --requirement /requirements/base.txt --requirement /requirements/gpu.txt \
        "${GPU_TORCH}" \
 && if [ -n "${FLASH_ATTN}" ]; then pip install --quiet --no-deps --find-links /wheels "${FLASH_ATTN}"; fi
COPY --from=code /dist /dist
RUN pip install --quiet --no-index --no-deps /dist/*.whl
COPY deploy/executor_health.py deploy/executor_drain.py /opt/baton/
USER baton
WORKDIR /tmp
CMD ["baton-executor", "--device", "cuda"]
