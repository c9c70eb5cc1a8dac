package core

import (
	"fmt"
	"testing"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestWhatOnlyTheSandboxKnowsToBeWrong(t *testing.T) {
	for detail, want := range map[string]string{
		`invalid request: cwd "/nowhere": no such file or directory`:  `invalid cwd: cwd "/nowhere": no such file or directory`,
		`invalid command: invalid command: cwd "/x": not a directory`: `invalid cwd: cwd "/x": not a directory`,
		`user "nobody2": unknown`:                                     `invalid user: user "nobody2": unknown`,
		"invalid request: invalid request: argv is empty":             "invalid request: argv is empty",
	} {
		err := HostError(fmt.Errorf("host h1: %w", &hostapi.Error{Code: hostapi.CodeInvalid, Message: "invalid request", Detail: detail}))
		e := apierror.As(err)
		if got := e.Message + ": " + e.Detail; e.Code != apierror.EInvalid || got != want {
			t.Errorf("%q: %s %q, want %q", detail, e.Code, got, want)
		}
	}
}
