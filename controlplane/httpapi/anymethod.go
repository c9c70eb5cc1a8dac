package httpapi

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/gin-gonic/gin"
)

// anyMethodRoutes take the methods that are in no table, such as those of WebDAV: what a
// program makes of them is its own. The document has no way to say so.
func anyMethodRoutes() []route {
	return []route{
		{"", pathAppRoot, workspace, ofApp((*API).passToApp), operation{action: writing, proxied: true}},
		{"", pathAppProxy, workspace, ofApp((*API).passToApp), operation{action: writing, proxied: true}},
		{"", pathInvokeRoot, workspace, ofFunction((*API).invokeFunction), operation{action: writing, proxied: true}},
		{"", pathInvoke, workspace, ofFunction((*API).invokeFunction), operation{action: writing, proxied: true}},
	}
}

// otherMethod answers a request whose path has no route with its method.
func (a *API) otherMethod(c *gin.Context) {
	for _, rt := range anyMethodRoutes() {
		params, ok := matchAnyMethod(rt.path, c.Request)
		if !ok {
			continue
		}
		c.Params = params
		c.Writer.Header().Del("Allow")
		c.Status(http.StatusOK) // what it is where the program says nothing else
		a.serve(rt)(c)
		return
	}
	a.fail(c, a.refuseMethod(c))
}

// matchAnyMethod reads the parameters of a path of the form <before>:id<after>, which may
// end in *rest.
func matchAnyMethod(path string, r *http.Request) (gin.Params, bool) {
	if r.Method == http.MethodTrace || r.Method == http.MethodConnect { // they are for servers, not for programs
		return nil, false
	}
	before, after, _ := strings.Cut(path, ":id")
	after, below := strings.CutSuffix(after, "*rest")
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), before)
	if !ok {
		return nil, false
	}
	escaped, rest, ok := strings.Cut(rest, "/")
	if !ok {
		return nil, false
	}
	rest, ok = strings.CutPrefix("/"+rest, after)
	if !ok || !below && rest != "" {
		return nil, false
	}
	id, err := url.PathUnescape(escaped)
	return gin.Params{{Key: "id", Value: id}, {Key: "rest", Value: "/" + rest}}, err == nil
}
