package edge

import (
	"net/http"
	"strings"
)

// class is the class of a request to an app, which says what it does to the app's sleep.
type class int

const (
	// classReal is a request of somebody who uses the app.
	classReal class = iota
	// classServed gets the app's answer, for which it is woken, but keeps it awake no longer:
	// crawlers, and checks of health.
	classServed
	// classQuiet does not wake the app: what browsers and others ask for by themselves.
	classQuiet
	// classMonitor does not wake the app, and is told that all is well.
	classMonitor
)

func (c class) wakes() bool { return c == classReal || c == classServed }

func (c class) resetsIdle() bool { return c == classReal }

// String returns the value of the metrics' label.
func (c class) String() string {
	return [...]string{classReal: "real", classServed: "served", classQuiet: "quiet", classMonitor: "monitor"}[c]
}

var allClasses = []class{classReal, classServed, classQuiet, classMonitor}

// classes is the table of classes. The first line that matches a request counts; one
// that none matches is real.
var classes = []struct {
	class class
	match func(r *http.Request, agent string) bool // agent is the User-Agent in lower case
}{
	{classMonitor, func(_ *http.Request, agent string) bool { return containsAny(agent, monitors) }},
	{classQuiet, func(r *http.Request, _ string) bool { return r.Method == http.MethodHead || quietPaths[r.URL.Path] }},
	{classServed, func(r *http.Request, _ string) bool { return r.Method == http.MethodOptions || healthPaths[r.URL.Path] }},
	{classServed, func(r *http.Request, _ string) bool { return strings.HasPrefix(r.URL.Path, "/.well-known/") }},
	{classServed, func(_ *http.Request, agent string) bool { return agent == "" || containsAny(agent, crawlers) }},
}

var quietPaths = map[string]bool{
	"/favicon.ico": true, "/robots.txt": true, "/sitemap.xml": true, "/apple-touch-icon.png": true,
}

var healthPaths = map[string]bool{
	"/health": true, "/healthz": true, "/healthcheck": true, "/livez": true, "/readyz": true, "/ping": true,
	"/status": true, "/up": true, "/_health": true, "/_healthz": true,
}

func classify(r *http.Request) class {
	agent := userAgent(r)
	for _, c := range classes {
		if c.match(r, agent) {
			return c.class
		}
	}
	return classReal
}

// maxAgent is how much of a User-Agent is looked at. Those of the lists name
// themselves sooner.
const maxAgent = 512

func userAgent(r *http.Request) string {
	agent := strings.TrimSpace(r.Header.Get("User-Agent"))
	return strings.ToLower(agent[:min(len(agent), maxAgent)])
}

func containsAny(s string, words []string) bool {
	for _, w := range words {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}
