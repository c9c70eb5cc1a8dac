// Package vmm starts, calls and watches one virtual machine monitor per
// virtual machine.
//
// The protocol is Cloud Hypervisor's REST API, version 53.0, spoken over a unix
// socket. Two programs serve it: cloud-hypervisor itself, and chvemu (see
// vmm/chvemu), which runs the guest under QEMU on machines without hardware
// virtualization. Nothing in this package knows which of the two it talks to,
// except Detect, which finds the binary and names its version.
//
// A VMM outlives the daemon that started it. Start writes its identity (process id,
// start time, boot id of the host) into its runtime directory, and Adopt finds
// it again by those, never by the process id alone. The exit status of a VMM is
// known only to its parent, so that of an adopted one is reported as unknown.
package vmm
