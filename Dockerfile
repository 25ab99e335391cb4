# The image of the agent:
#
#     docker build --tag localhost/shunt:0.1.0 .
#
# `cargo xtask image` builds the last stage alone, from what the machine has (BUILT, BASE). A tag can move:
# to build on the same images for ever, give digests, as in --build-arg BASE=…@sha256:…
ARG BUILDER=docker.io/library/rust:1.95.0-bookworm
# glibc and its licences, without a shell.
ARG BASE=gcr.io/distroless/cc-debian12
ARG BUILT=tree

FROM ${BUILDER} AS build
WORKDIR /shunt
COPY . .
ARG SHUNT_COMMIT
ARG SHUNT_TAG
# So that scanners find the crates in the program.
RUN [ -z "$SHUNT_TAG" ] || cargo install --locked --quiet cargo-auditable@0.7.7
# Installs the C libraries, builds, and starts the result.
RUN cargo xtask release ${SHUNT_TAG:+--tag "$SHUNT_TAG"}

FROM scratch AS files
COPY --from=build /shunt/target/release-artifacts /

FROM scratch AS tree
COPY --from=build /shunt/target/release-tree /

FROM ${BUILT} AS built

FROM ${BASE}
COPY --from=built / /
# No USER: Kubernetes gives NET_ADMIN, the one capability that the agent needs, to root only. It drops
# all others; see deploy/README.md.
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/shunt"]
CMD ["run"]
