package httpapi

import (
	"encoding/json"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// appEnvRoutes are the routes of an app's environment variables.
func appEnvRoutes() []route {
	badKey := apierror.Error{Code: apierror.EInvalid, Message: "invalid key", Detail: "PORT is set by the platform: the app's port is its field port"}
	badScope := apierror.Error{Code: apierror.EInvalid, Message: "invalid scope", Detail: "at most 64 letters, digits, '-' and '_'"}
	tooMany := apierror.Error{Code: apierror.EInvalid, Message: "too many variables", Detail: "at most 200"}
	tooLarge := apierror.Error{Code: apierror.EInvalid, Message: "variables too large", Detail: "names and values have at most 262144 bytes together"}
	return []route{
		{get, "/v1/apps/:id/env", workspace, ofApp((*API).listVariables), operation{
			id: "listAppEnv", tag: "Apps", summary: "List the environment variables of an app, with secret values masked",
			status: 200, answer: []api.AppVariable{exampleVariable, exampleSecret},
		}},
		{put, "/v1/apps/:id/env/:key", workspace, ofApp((*API).putVariable), operation{
			id: "putAppEnv", tag: "Apps", summary: "Set an environment variable of an app",
			detail: "Deployments from now on have it. A secret one is masked when it is read, and left out of the logs of builds. " +
				"Without `secret` and `scope`, one that exists keeps its own.",
			body: api.PutAppVariable{Value: "sk_live_4242", Secret: new(true), Scope: new("production")}, status: 200, answer: exampleSecret,
			failures: []apierror.Error{
				badKey, {Code: apierror.EInvalid, Message: errNoValue.Message}, {Code: apierror.EInvalid, Message: "invalid value", Detail: "it is longer than 65536 bytes"},
				badScope, tooMany, tooLarge,
			},
		}},
		{del, "/v1/apps/:id/env/:key", workspace, ofApp((*API).deleteVariable), operation{
			id: "deleteAppEnv", tag: "Apps", summary: "Remove an environment variable of an app", status: 204,
		}},
		{post, "/v1/apps/:id/env/import", workspace, ofApp((*API).importEnv), operation{
			id: "importAppEnv", tag: "Apps", summary: "Set the environment variables of a .env file",
			detail: "Others stay as they are. `secret` and `scope` are of each of them. The answer has all variables of the app.",
			body:   api.ImportAppEnv{Dotenv: "LOG_LEVEL=info\n"}, status: 200, answer: []api.AppVariable{exampleVariable, exampleSecret},
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: errNoDotenv.Message}, {Code: apierror.EInvalid, Message: "invalid dotenv", Detail: "line 3: the quote is never closed"}, badScope, tooMany, tooLarge,
			},
		}},
	}
}

var (
	errNoValue  = &apierror.Error{Code: apierror.EInvalid, Message: "value is required"}
	errNoDotenv = &apierror.Error{Code: apierror.EInvalid, Message: "dotenv is required"}
)

// given reports whether a body, which is known to be an object, has a member that is
// not null.
func given(raw []byte, member string) bool {
	var members map[string]json.RawMessage
	return json.Unmarshal(raw, &members) == nil && len(members[member]) > 0 && string(members[member]) != "null"
}

func (a *API) listVariables(c *gin.Context, id string) error {
	env, err := a.deployed(c).Env(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, orEmpty(env))
}

func (a *API) putVariable(c *gin.Context, id string) error {
	in, raw, err := bind[api.PutAppVariable](c, maxJSONBody)
	if err != nil {
		return err
	}
	if !given(raw, "value") { // an empty one is a value
		return errNoValue
	}
	v, err := a.deployed(c).PutVariable(c.Request.Context(), callerOf(c), id, c.Param("key"), in)
	if err != nil {
		return err
	}
	return ok(c, v)
}

func (a *API) deleteVariable(c *gin.Context, id string) error {
	if err := a.deployed(c).DeleteVariable(c.Request.Context(), callerOf(c), id, c.Param("key")); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) importEnv(c *gin.Context, id string) error {
	in, raw, err := bind[api.ImportAppEnv](c, maxJSONBody)
	if err != nil {
		return err
	}
	if !given(raw, "dotenv") {
		return errNoDotenv
	}
	env, err := a.deployed(c).ImportEnv(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return ok(c, orEmpty(env))
}
