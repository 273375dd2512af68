FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/gaggle ./cmd/gaggle-cni

# Nothing else is needed: the programs speak to the kernel themselves.
FROM scratch
COPY --from=build /out/gaggle /out/gaggle-cni /src/LICENSE /
ENTRYPOINT ["/gaggle"]
CMD ["node"]
