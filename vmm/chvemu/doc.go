// Package chvemu serves Cloud Hypervisor's REST API and runs the guest under QEMU,
// on machines that have no hardware virtualization.
//
// DESIGN.md beside this file says how the one is made of the other, what is
// refused, and which races the code guards against.
package chvemu
