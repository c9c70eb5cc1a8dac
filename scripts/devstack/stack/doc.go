// Package stack runs a complete Berth on this machine: three control-plane
// replicas and some host daemons, as the real programs from bin/, with their own
// identities, ports and directories. `make up`, the end-to-end tests and the
// benchmarks use it.
//
// It uses the programs as a user does: through their flags, environment and
// public API.
package stack
