# The gateway alone: engines run in containers of their own and share /run/smg with it (see deploy/).
#   docker build -t smg-trio .
# Packages are installed by hash. To pin the base image as well, name it by digest:
#   docker build --build-arg BASE=python:3.13-slim@sha256:… -t smg-trio .
ARG BASE=python:3.13-slim
FROM ${BASE} AS build
WORKDIR /src
COPY deploy/requirements.txt ./
RUN python -m venv /opt/smg-trio \
    && /opt/smg-trio/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
        --require-hashes -r requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY smg_trio ./smg_trio
RUN /opt/smg-trio/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/smg-trio/bin/python -m pip uninstall --yes hatchling pip \
    && /opt/smg-trio/bin/python -m compileall -q /opt/smg-trio/lib

FROM ${BASE}
# Sockets belong to the user who made them, and engines must be allowed to write to them: run these as the same user
# (or as root). The gateway makes the directory below the volume itself, so that its owner is right.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin smg \
    && install --directory --owner=smg --mode=0700 /run/smg
COPY --from=build /opt/smg-trio /opt/smg-trio
COPY deploy/healthcheck.py /opt/smg-trio/healthcheck.py
ENV PATH=/opt/smg-trio/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001
VOLUME /run/smg
EXPOSE 30000 29000
# SIGTERM drains: answers in flight have --shutdown-grace-period-secs. Give `docker stop` more time than that.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "/opt/smg-trio/healthcheck.py"]
ENTRYPOINT ["smg-trio"]
CMD ["launch"]
