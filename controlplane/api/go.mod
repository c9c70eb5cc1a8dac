// The public types and the Go client are a module of their own: a program that
// uses the client does not ask for what the service needs.
module github.com/berth-cloud/berth/controlplane/api

go 1.26.0

require github.com/coder/websocket v1.8.15

// Of the tests alone.
require (
	github.com/google/go-cmp v0.7.0
	go.uber.org/goleak v1.3.0
)
