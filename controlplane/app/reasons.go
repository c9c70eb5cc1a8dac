package app

import (
	"errors"
	"strings"
	"unicode"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// maxReason limits the length of an error in a row, in bytes.
const maxReason = 4 << 10

func asOwn(err error, own **apierror.Error) bool { return err != nil && errors.As(err, own) }

// reasonOf returns what an app's owner is told about an error.
func reasonOf(err error) string {
	var own *apierror.Error
	var said *appapi.Refusal
	var refusal *hostapi.Error
	switch {
	case errors.As(err, &own) && own.Code == apierror.EInternal && own.Message == "internal error":
		return "the control plane could not do it"
	case errors.As(err, &own) && own.Detail != "":
		return clean(own.Message+": "+own.Detail, maxReason)
	case errors.As(err, &own):
		return clean(own.Message, maxReason)
	case errors.As(err, &said):
		return clean(said.Body.Error, maxReason)
	case hosts.Unreachable(err), errors.Is(err, hosts.ErrNotLeading):
		return "its host does not answer"
	case errors.As(err, &refusal) && refusal.Code == hostapi.CodeNotFound:
		return errBoxGone.Message
	case errors.As(err, &refusal) && (refusal.Code == hostapi.CodePortClosed || refusal.Code == hostapi.CodeGuest):
		return "its virtual machine does not answer"
	case errors.As(err, &refusal) && refusal.Code != hostapi.CodeInternal && refusal.Code != hostapi.CodeInvalid:
		return clean(refusal.Error(), maxReason)
	}
	return "its virtual machine does not answer"
}

// clean makes a guest's text fit for a row: printable, without space around it.
func clean(s string, most int) string { return strings.TrimSpace(printable(s, most)) }

// printable makes a guest's text valid UTF-8, without characters that move a terminal's
// cursor, and not longer than most bytes.
func printable(s string, most int) string {
	s = strings.ToValidUTF8(s[:min(len(s), 4*most)], "\uFFFD")
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), unicode.Is(unicode.Co, r):
			return -1
		}
		return r
	}, s)
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// cleanLine is clean for a single line.
func cleanLine(s string, most int) string {
	return strings.Join(strings.Fields(clean(s, most)), " ")
}
