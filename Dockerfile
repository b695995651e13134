# SOMA-repro with all dependencies, each checked by its hash. The folder that is mounted at /campaign is a clone of the
# repository: the workflow and the configuration are read there, and results are written there.
#   docker build --tag soma .
#   docker run --rm --user "$(id -u)" --volume "$PWD:/campaign" soma snakemake --cores all --configfile config/toy.yaml
# torch is the build that the package index offers for the platform, on Linux one with CUDA. To choose another, give
# your pip configuration and --build-arg TORCH=torch==2.13.0.
ARG PYTHON=docker.io/library/python:3.11-slim-bookworm

FROM ${PYTHON} AS build
# Debian offers one version of each package, so that a pinned version would soon be gone.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/soma
COPY . .
ARG TORCH
RUN make setup VENV=/opt/venv ${TORCH:+TORCH="$TORCH"}

FROM ${PYTHON}
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/soma /opt/soma
# Caches of libraries go where any user may write.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp
RUN useradd --no-create-home --uid 1000 soma
USER 1000
WORKDIR /campaign
CMD ["soma", "--help"]
