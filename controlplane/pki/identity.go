// Package pki implements the cluster's own certificate authority. It creates the CA,
// issues the certificates of replicas, hosts, routers and operators, and builds TLS
// configurations in which both sides prove their identity.
//
// A certificate's common name is its holder's identity ("replica:a", "host:h1",
// "operator:ann", "router:r1"). Addresses in a certificate are a convenience for clients
// outside this module. Inside it, only the chain to the CA and the identity count, so a
// machine may change its address without a new certificate.
package pki

import (
	"errors"
	"fmt"
	"strings"
)

// Role is the kind of a certificate's holder.
type Role string

// The roles.
const (
	RoleReplica  Role = "replica"
	RoleHost     Role = "host"
	RoleOperator Role = "operator"
	RoleRouter   Role = "router" // a database router that runs as a separate process
)

// Identity is the member or operator that a certificate was issued to.
type Identity struct {
	Role Role
	Name string
}

// CommonName returns the identity in the form used in certificates.
func (i Identity) CommonName() string { return string(i.Role) + ":" + i.Name }

// dnsName returns the identity as a DNS name. Every certificate contains it, so that
// standard clients can verify a peer without knowing its address.
func (i Identity) dnsName() string { return i.Name + "." + string(i.Role) + ".berth" }

// ErrIdentity is returned for a common name that is not an identity.
var ErrIdentity = errors.New("not a berth identity")

// parseIdentity parses a common name.
func parseIdentity(commonName string) (Identity, error) {
	role, name, ok := strings.Cut(commonName, ":")
	id := Identity{Role: Role(role), Name: name}
	switch {
	case !ok, ValidName(name) != nil:
	case id.Role == RoleReplica, id.Role == RoleHost, id.Role == RoleOperator, id.Role == RoleRouter:
		return id, nil
	}
	return Identity{}, fmt.Errorf("%w: %q", ErrIdentity, commonName)
}

// ValidName returns an error if name is not a DNS label. Names become host names, file
// names and metric labels.
func ValidName(name string) error {
	ok := len(name) >= 1 && len(name) <= 63 && name[0] != '-' && name[len(name)-1] != '-'
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-'
	}
	if !ok {
		return fmt.Errorf("name %.100q: want 1 to 63 of a-z, 0-9 and '-', not at an end", name)
	}
	return nil
}
