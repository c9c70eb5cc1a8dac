package domain

import (
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/webhook"
)

// proofLabel is the label below a domain with the TXT record that proves it.
const proofLabel = "_berth"

// Lengths in bytes: of a host name in DNS (RFC 1035, 2.3.4), and of what is looked at
// to find one. The name of the TXT record has to be one too.
const (
	maxName  = 253 - len(proofLabel+".")
	maxInput = 1024
)

// toASCII maps names as browsers do, and refuses what no host name can have.
var toASCII = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.CheckHyphens(true), idna.CheckJoiners(true), idna.StrictDomainName(true), idna.VerifyDNSLength(true))

const errName = "invalid domain"

// Name returns the one form in which a host name of the public internet is kept and
// compared: in lower case and ASCII, without a dot at the end. It refuses all that no
// workspace can have for itself, and what no public server of DNS should be asked for.
func Name(in string) (string, error) {
	switch {
	case in == "":
		return "", &apierror.Error{Code: apierror.EInvalid, Message: "domain is required"}
	case len(in) > maxInput:
		return "", apierror.Invalid(errName, "it is longer than %d characters", maxName)
	case strings.Contains(in, "*"):
		return "", apierror.Invalid(errName, "wildcards cannot be had: name each host")
	case strings.ContainsAny(in, "/:@"):
		return "", apierror.Invalid(errName, "want a host name alone, such as shop.example.com")
	}
	if _, err := netip.ParseAddr(in); err == nil {
		return "", apierror.Invalid(errName, "it is an address, and no name")
	}
	name, err := toASCII.ToASCII(strings.TrimSuffix(in, "."))
	if err != nil {
		return "", apierror.Invalid(errName, "it is no host name")
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return "", apierror.Invalid(errName, "it is an address, and no name")
	}
	switch {
	case len(name) > maxName:
		return "", apierror.Invalid(errName, "it is longer than %d characters", maxName)
	case !hostName(name):
		return "", apierror.Invalid(errName, "it is no host name")
	case !strings.Contains(name, "."):
		return "", apierror.Invalid(errName, "it has one label alone")
	case webhook.PrivateName(name):
		return "", apierror.Invalid(errName, "it is no name of the public internet")
	}
	suffix, icann := publicsuffix.PublicSuffix(name)
	switch {
	case !icann && !strings.Contains(suffix, "."): // by the rule for names that no rule is about
		return "", apierror.Invalid(errName, "it is no name of the public internet")
	case suffix == name:
		return "", apierror.Invalid(errName, "it is a public suffix, below which anybody has names")
	}
	return name, nil
}

// hostName reports whether a name consists of labels of letters, digits and hyphens.
func hostName(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if c := label[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return true
}

// apex reports whether a name is directly below a public suffix. DNS has other records
// there, beside which there can be no CNAME (RFC 1034, 3.6.2).
func apex(name string) bool {
	top, err := publicsuffix.EffectiveTLDPlusOne(name)
	return err == nil && top == name
}

// reserved reports whether a name is the service's own.
func (s *Domains) reserved(name string) bool {
	for _, suffix := range s.cfg.Suffixes {
		suffix = strings.ToLower(suffix)
		if suffix != "" && (name == suffix || strings.HasSuffix(name, "."+suffix)) {
			return true
		}
	}
	return s.cfg.Own != nil && s.cfg.Own(name)
}
