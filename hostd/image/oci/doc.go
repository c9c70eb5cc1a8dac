// Package oci turns an OCI image of a registry into a directory that a root
// file system is made of. Both the registry and the image may be hostile: what
// is read is bounded, what a host must not make is refused by name, nothing is
// written outside the directory, and a tenant's reference does not reach the
// host's own networks.
package oci
