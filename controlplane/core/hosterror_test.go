package core

import (
	"fmt"
	"testing"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestASandboxWithoutRoomSaysWhichLimitItReached(t *testing.T) {
	e := apierror.As(HostError(&hostapi.Error{
		Code: hostapi.CodeBusy, Message: "too many commands run in this sandbox",
		Detail: "too many commands run in this sandbox: command not started: limit reached: the sandbox has no memory left",
	}))
	if e.Code != apierror.ERateLimited || e.Detail != "command not started: limit reached: the sandbox has no memory left" || e.RetryAfter == 0 {
		t.Errorf("%+v", e)
	}
}

func TestWhatOnlyTheSandboxKnowsToBeWrong(t *testing.T) {
	for _, c := range []struct {
		code         hostapi.Code
		detail, want string
	}{
		{hostapi.CodeInvalidCwd, `invalid request: command not started: invalid command: cwd "/nowhere": no such file or directory`,
			`invalid cwd: command not started: invalid command: cwd "/nowhere": no such file or directory`},
		{hostapi.CodeInvalidUser, `invalid request: command not started: no such user: "nobody2"`,
			`invalid user: command not started: no such user: "nobody2"`},
		// The guest's text does not decide the error's code or message.
		{hostapi.CodeInvalid, `invalid request: cwd "/nowhere": no such file or directory`, `invalid request: cwd "/nowhere": no such file or directory`},
		{hostapi.CodeInvalid, "invalid request: invalid request: argv is empty", "invalid request: argv is empty"},
	} {
		err := HostError(fmt.Errorf("host h1: %w", &hostapi.Error{Code: c.code, Message: "invalid request", Detail: c.detail}))
		e := apierror.As(err)
		if got := e.Message + ": " + e.Detail; e.Code != apierror.EInvalid || got != c.want {
			t.Errorf("%s %q: %s %q, want %q", c.code, c.detail, e.Code, got, c.want)
		}
	}
}
