package httpapi

import (
	"crypto/sha256"
	"encoding/json"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// createSandboxBody is api.CreateSandbox as it is read: a boot or a preview that
// is given as "" is none of those that there are.
type createSandboxBody struct {
	Template     string            `json:"template"`
	TTLSeconds   *int64            `json:"ttl_seconds"`
	Metadata     api.Object        `json:"metadata"`
	Env          api.StringMap     `json:"env"`
	FromSnapshot string            `json:"from_snapshot"`
	Volumes      []api.VolumeMount `json:"volumes"`
	Boot         *string           `json:"boot"`
	Persistent   bool              `json:"persistent"`
	Preview      *string           `json:"preview"`
}

func (a *API) createSandbox(c *gin.Context) error {
	key, err := idempotencyKey(c)
	if err != nil {
		return err
	}
	in, raw, err := bind[createSandboxBody](c, maxJSONBody)
	if err != nil {
		return err
	}
	if in.Template == "" {
		return invalid("template is required", "")
	}
	digest := sha256.Sum256(raw)
	sb, err := a.cfg.Sandboxes.Create(c.Request.Context(), callerOf(c), sandbox.CreateSandbox{
		Template:     in.Template,
		TTLSeconds:   in.TTLSeconds,
		Metadata:     json.RawMessage(in.Metadata),
		Env:          in.Env,
		FromSnapshot: in.FromSnapshot,
		Volumes: each(in.Volumes, func(v api.VolumeMount) sandbox.VolumeMount {
			return sandbox.VolumeMount{Name: v.Name, MountPath: v.MountPath}
		}),
		Boot:           in.Boot,
		Persistent:     in.Persistent,
		Preview:        in.Preview,
		IdempotencyKey: key,
		BodySHA256:     digest[:],
	})
	if err != nil {
		return err
	}
	c.Set(keySandboxID, sb.ID)
	return created(c, renderSandbox(sb))
}

func (a *API) listSandboxes(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	page, next, err := a.cfg.Sandboxes.List(c.Request.Context(), callerOf(c), o)
	if err != nil {
		return err
	}
	linkNext(c, o, next)
	return ok(c, each(page, renderSandbox))
}

func (a *API) getSandbox(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	sb, err := a.cfg.Sandboxes.Get(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, renderSandbox(sb))
}

func (a *API) deleteSandbox(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	if err := a.cfg.Sandboxes.Delete(c.Request.Context(), callerOf(c), id); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) execInSandbox(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	in, release, err := a.bindExec(c)
	if err != nil {
		return err
	}
	result, err := a.cfg.Commands.Exec(c.Request.Context(), callerOf(c), id, in)
	release()
	if err != nil {
		return err
	}
	writeExec(c, result)
	return nil
}

// bindExec reads an exec. release is called once it is not held any more.
func (a *API) bindExec(c *gin.Context) (in sandbox.Exec, release func(), err error) {
	release, err = a.admitBody(c, maxExecBody)
	if err != nil {
		return in, nil, err
	}
	body, _, err := bind[api.Exec](c, maxExecBody)
	if err == nil {
		in, err = execOf(body)
	}
	if err != nil {
		release()
	}
	return in, release, err
}

// execOf is an exec in the service's terms. A string is run by a shell even where
// it is one word; an array never is.
func execOf(in api.Exec) (sandbox.Exec, error) {
	switch {
	case in.Cmd.IsZero(), in.Cmd.Argv == nil && strings.TrimSpace(in.Cmd.Shell) == "":
		return sandbox.Exec{}, invalid("cmd required", "")
	case in.Cmd.Argv != nil && in.Cmd.Argv[0] == "":
		return sandbox.Exec{}, invalid("cmd required", "the first element of cmd, the program, is empty")
	case in.Stdin != "" && len(in.StdinBase64) > 0:
		return sandbox.Exec{}, invalidJSON("give stdin or stdin_base64, not both")
	}
	stdin := []byte(in.StdinBase64)
	if in.Stdin != "" {
		stdin = []byte(in.Stdin)
	}
	return sandbox.Exec{
		Shell:          in.Cmd.Shell,
		Argv:           in.Cmd.Argv,
		Cwd:            in.Cwd,
		Env:            in.Env,
		User:           in.User,
		Stdin:          stdin,
		TimeoutSeconds: in.TimeoutSeconds,
	}, nil
}
