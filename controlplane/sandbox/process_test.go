package sandbox_test

import (
	"encoding/json"
	"io"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Exec learns from the host, a stream from the guest itself, why a command did not start.
func TestAStreamThatDoesNotStartFailsAsExecDoes(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	for name, c := range map[string]struct {
		says   guestapi.Error
		code   apierror.Code
		error  string
		detail string
	}{
		"no such directory": {
			guestapi.Error{Error: "command not started", Detail: `invalid command: cwd "/x": no such file or directory`, Code: guestapi.CodeInvalidCwd},
			apierror.EInvalid, "invalid cwd", `command not started: invalid command: cwd "/x": no such file or directory`,
		},
		"no such user": {
			guestapi.Error{Error: "command not started", Detail: `no such user: "x"`, Code: guestapi.CodeNoUser},
			apierror.EInvalid, "invalid user", `command not started: no such user: "x"`,
		},
		"a full guest": {
			guestapi.Error{Error: "command not started", Detail: "limit reached: the sandbox has no memory left", Code: guestapi.CodeLimit},
			apierror.ERateLimited, "too many commands at once in this sandbox", "command not started: limit reached: the sandbox has no memory left",
		},
		"a fault": {
			guestapi.Error{Error: "command not started", Detail: "read /etc/passwd: input/output error", Code: guestapi.CodeFault},
			apierror.EBadGateway, "agent unreachable", "the sandbox could not start the command",
		},
		"an agent without a code": {
			guestapi.Error{Error: "command not started", Detail: "why"}, apierror.EInvalid, "command not started", "why",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.H1.SetProcess(func(_ hostapi.ExecStream, rw io.ReadWriter) {
				raw, err := json.Marshal(c.says)
				if err == nil {
					err = guestapi.WriteFrame(rw, guestapi.FrameError, raw)
				}
				if err != nil {
					t.Error(err)
				}
			})
			p, err := r.Commands.Stream(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Shell("true")}, false)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			_, err = p.Next()
			if e := testplane.Want(t, err, c.code, c.error); e.Detail != c.detail {
				t.Errorf("detail %q, want %q", e.Detail, c.detail)
			}
		})
	}
}
