package httpapi

import (
	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

var examplePreviewAccess = api.PreviewAccess{
	Token: "ASm4x7n0Qq3rYkz2", ExpiresAt: exampleExpires,
	URL: "https://3000-k7m2qz4xw3v5n6a2j7p4t5r6sd.preview.example.com/?berth_token=ASm4x7n0Qq3rYkz2",
}

// previewRoutes are the routes of tokens for private previews. controlplane/edge
// serves the previews, which have host names of their own.
func previewRoutes() []route {
	return []route{
		{post, "/v1/sandboxes/:id/preview-tokens", workspace, (*API).createPreviewToken, operation{
			id: "createPreviewToken", tag: "Ports", summary: "Make a token that shows a private sandbox's ports",
			detail: "For a sandbox whose `preview` is `token`. A browser is given the `url`, which sets a cookie; a program sends the " +
				"token as the header Berth-Preview-Token. A token cannot be revoked before it expires.",
			body: api.CreatePreviewToken{TTLSeconds: new(int64(3600)), Port: new(3000)}, status: 201, answer: examplePreviewAccess,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "invalid ttl_seconds", Detail: "ttl_seconds must be from 1 to 604800"},
				{Code: apierror.EInvalid, Message: "invalid port", Detail: "port must be from 1 to 65535"},
			},
		}},
	}
}

func (a *API) createPreviewToken(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	in, _, err := bind[api.CreatePreviewToken](c, maxJSONBody)
	if err != nil {
		return err
	}
	out, err := a.cfg.Ports.PreviewToken(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return created(c, out)
}
