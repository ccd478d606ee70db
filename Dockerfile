# kvcake serve in a container:
#
#   docker build -t kvcake:0.1.0 .
#   docker run -p 127.0.0.1:8000:8000 -v kvcake:/var/cache/kvcake --stop-timeout 120 \
#       -e KVCAKE_API_KEY=a-long-random-string kvcake:0.1.0
#
# Without a key, one is made and written to the log. Another model:
# -v DIR:/model:ro kvcake:0.1.0 serve --host 0.0.0.0 --model /model --store /var/cache/kvcake
FROM debian:bookworm AS build
WORKDIR /src
COPY . .
RUN ./dev package

FROM debian:bookworm-slim
COPY --from=build /src/build/release/kvcake_*.deb /tmp/
COPY deploy/container-start deploy/container-health /usr/local/bin/
RUN apt-get update \
    && apt-get install -y --no-install-recommends /tmp/kvcake_*.deb ca-certificates openssl \
    && rm -rf /var/lib/apt/lists/* /tmp/kvcake_*.deb \
    && useradd --system --uid 999 --home-dir /var/cache/kvcake --shell /usr/sbin/nologin kvcake \
    && install -d -o kvcake -g kvcake -m 700 /var/cache/kvcake
USER kvcake
VOLUME /var/cache/kvcake
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=10m CMD ["container-health"]
ENTRYPOINT ["container-start"]
CMD ["serve", "--host", "0.0.0.0", "--model", "/usr/share/kvcake/models/demo", \
     "--store", "/var/cache/kvcake"]
