// Package pgsni routes PostgreSQL connections by the name that a client's TLS
// handshake asks for (SNI): <name>.<domain>. One public port serves any number
// of databases, each of which may be asleep until somebody connects.
//
// A Router ends TLS, asks a Resolver which Backend a name stands for, and relays
// between the two. It knows no product rule: what a name means, what waking is
// and whom a backend belongs to is the Resolver's business.
//
// The wire protocol is that of the PostgreSQL manual, chapter "Frontend/Backend
// Protocol": sections "Message Flow", "SSL Session Encryption", "SASL
// Authentication", "Message Formats" and "Canceling Requests in Progress".
// DESIGN.md has the picture and the reasons.
package pgsni
