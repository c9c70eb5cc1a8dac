// Package slot makes the network slots of a host: a network namespace with a
// tap for one guest, a veth pair to the host, and the rules between them.
//
// A slot is known by its number, and everything about it follows from the
// number and the Config: there is no record that could disagree with the
// kernel. Ensure completes or repairs whatever is there, Remove takes away
// whatever is there, List reads the kernel. A Pool keeps slots ready in
// advance. See netfab/DESIGN.md.
package slot
