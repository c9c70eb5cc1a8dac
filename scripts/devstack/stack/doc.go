// Package stack runs a whole Berth on this machine: three control-plane
// replicas and some host daemons, as the real programs from bin/, with their
// own identities, ports and directories. `make up` shows it to a person; the
// end-to-end tests and the benchmarks drive it.
//
// It knows the programs only as a user does: by their flags, their environment
// and their public API.
package stack
