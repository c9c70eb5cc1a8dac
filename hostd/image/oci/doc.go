// Package oci unpacks an OCI image of a registry into a directory from which a root
// file system is made. Both the registry and the image may be hostile: everything
// that is read is limited, what must not be created on a host is refused with its
// name, nothing is written outside the directory, and a tenant's reference does not
// reach the host's own networks.
package oci
