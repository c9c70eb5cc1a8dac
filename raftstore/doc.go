// Package raftstore keeps the control plane's records in memory on every
// replica and agrees on their changes by Raft.
//
// A transaction runs once, on the leader, against a consistent snapshot. What
// it read and what it wants to write is put into the log; each replica checks
// the reads and applies the writes, or refuses both, in the same way. The
// package knows tables, rows and indexes, and no rule of the product.
//
// DESIGN.md in this folder explains the choices and the formats.
package raftstore
