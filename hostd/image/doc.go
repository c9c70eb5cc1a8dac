// Package image builds templates and keeps them: the kernel, the initramfs, the
// layers of the root file system, and the stored state of a guest that was
// booted once from them. See DESIGN.md.
package image
