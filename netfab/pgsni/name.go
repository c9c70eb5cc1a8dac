package pgsni

import (
	"regexp"
	"strings"
	"unicode"
)

// label is a DNS label in lower case (RFC 1123).
var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// databaseName is the name that a client asked for in its ClientHello. domain is
// in lower case. Host names have no case (RFC 4343).
func databaseName(sni, domain string) (string, error) {
	if sni == "" {
		return "", &Refusal{
			Code:    codeRejectedConnection,
			Message: "the connection names no database: its TLS handshake has no server name (SNI)",
			Hint:    "Connect to <name>." + domain + " by name, not by address, with a client that sends SNI (libpq 14 and later).",
		}
	}
	name, ok := strings.CutSuffix(strings.ToLower(sni), "."+domain)
	if !ok || !isASCII(sni) || !label.MatchString(name) {
		return "", &Refusal{
			Code:    codeRejectedConnection,
			Message: "the connection names no database of this server",
			Hint:    "Connect to <name>." + domain + ".",
		}
	}
	return name, nil
}

// isASCII keeps ToLower from making letters of signs, such as k of the Kelvin sign.
func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII })
}
