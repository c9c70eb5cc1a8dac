// Package nft holds the packet rules of a host and of its network slots, and
// puts them into the kernel with one transaction a table.
//
// There are two tables, both of family inet: one on the host
// (HostRules.Ruleset) and one in every slot's namespace (SlotRules.Ruleset).
// No other table is ever changed. netfab/DESIGN.md draws where they sit.
package nft
