# The image of the agent, with a container engine. Without one: `cargo xtask image`, which also says
# here what is in the image, so that both are the same.
#
#     docker build --tag localhost/shunt:0.1.0 .
#
# A tag can move. To build on one image for ever, give its digest:
# --build-arg BUILDER=docker.io/library/rust@sha256:…
ARG BUILDER=docker.io/library/rust:1.95.0-bookworm

FROM ${BUILDER} AS build
WORKDIR /shunt
COPY . .
# Installs the C libraries, builds, runs the result once in what will be its image.
RUN cargo xtask image --unpack /image

FROM scratch
COPY --from=build /image /
# No USER: Kubernetes gives NET_ADMIN, the one capability that the agent needs, to root only. It drops
# all others; see deploy/README.md.
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/shunt"]
CMD ["run"]
