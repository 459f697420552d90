# docker build -t gradcheck .
# docker run --rm -v "$PWD:/models" gradcheck net.onnx --x input --y loss

FROM python:3.12-slim AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY gradcheck_cli gradcheck_cli
RUN python -m venv /opt/gradcheck \
    && /opt/gradcheck/bin/pip install --no-cache-dir '.[operators,plots,report,runtime,zoo]'

FROM python:3.12-slim
COPY --from=build /opt/gradcheck /opt/gradcheck
RUN useradd --create-home --uid 1000 gradcheck
ENV PATH=/opt/gradcheck/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1
USER 1000
WORKDIR /models
ENTRYPOINT ["gradcheck"]
CMD ["--help"]
