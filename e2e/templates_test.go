package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// of makes a sandbox of one of the templates that ship.
func (c *tenant) of(t *testing.T, template string) *api.Sandbox {
	t.Helper()
	eventually(t, 10*time.Second, "the template "+template+" is ready (bin/devstack prepare --template "+template+")", func(ctx context.Context) error {
		got, err := c.GetTemplate(ctx, template)
		if err == nil && got.Status != api.TemplateReady {
			err = fmt.Errorf("it is %s", got.Status)
		}
		return err
	})
	return c.make(t, api.CreateSandbox{Template: template})
}

// put writes a small file into a sandbox.
func (c *tenant) put(t *testing.T, id, path, content string) {
	t.Helper()
	if _, err := c.WriteFile(t.Context(), id, path, "", strings.NewReader(content), int64(len(content))); err != nil {
		t.Fatal(err)
	}
}

func TestPythonTemplate(t *testing.T) {
	atLength(t)
	t.Parallel()
	c := newTenant(t)
	s := c.of(t, "python")
	t.Run("python and pip", func(t *testing.T) {
		for line, want := range map[string]string{
			`readlink -f "$(command -v python)"`:                                                             c.run(t, s.ID, `readlink -f "$(command -v python3)"`),
			"python -c 'import ensurepip; print(6 * 7)'":                                                     "42",
			"python -m venv --without-pip /v && /v/bin/python -c 'import sys; print(sys.prefix)'":            "/v",
			"pip install --root-user-action=ignore --no-index --disable-pip-version-check pip | cut -d: -f1": "Requirement already satisfied", // not refused, as Debian's pip does
		} {
			if got := c.run(t, s.ID, line); got != want {
				t.Errorf("%s\nsays %q, want %q", line, got, want)
			}
		}
	})
	t.Run("language server", func(t *testing.T) {
		l := c.speak(t, s.ID, "python", "file:///root", nil)
		defer l.server.Close()
		const uri = "file:///root/x.py"
		l.open(t, uri, "python", "import os\n\nos.path.joi\nprint(nope)\n")
		l.finds(t, uri, problem{Severity: 1, Message: "undefined name 'nope'", Range: span{Start: position{3, 6}}})
		l.completes(t, uri, position{2, len("os.path.joi")}, "join")
		l.change(t, uri, 2, "import os\n\nos.path.join('a', 'b')\n")
		l.finds(t, uri)
		l.server.Close()
		c.noSuchProcess(t, s.ID, "pylsp")
	})
}

func TestNodeTemplate(t *testing.T) {
	atLength(t)
	t.Parallel()
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.of(t, "node")
	serves := func(t *testing.T, want string) {
		t.Helper()
		for i := range theStack.URLs {
			eventually(t, 60*time.Second, "the preview shows "+want, func(context.Context) error {
				got := visit(t, browser(t, i), "GET", "http://"+previewHost(3000, s.ID)+"/", nil, nil)
				if got.status != 200 || !strings.HasPrefix(got.body, want) {
					return fmt.Errorf("replica %d: %d %s", i+1, got.status, clip(got.body))
				}
				return nil
			})
		}
	}
	t.Run("web server", func(t *testing.T) {
		serves(t, "Ready for your code")
		c.put(t, s.ID, "/app/server.js", `require('http').createServer((_, r) => r.end('mine, by ' + process.version)).listen(process.env.PORT)`)
		serves(t, "mine, by v")
	})
	t.Run("language server", func(t *testing.T) {
		// What an editor on a small machine asks for: one server, of the language alone.
		c.put(t, s.ID, "/root/project/tsconfig.json", `{"compilerOptions": {"lib": ["es5"], "types": []}}`)
		l := c.speak(t, s.ID, "typescript", "file:///root/project", object{
			"disableAutomaticTypingAcquisition": true, "tsserver": object{"useSyntaxServer": "never"},
		})
		defer l.server.Close()
		const uri = "file:///root/project/x.ts"
		l.open(t, uri, "typescript", "const n: number = 'x';\nn.toFix")
		l.finds(t, uri,
			problem{Severity: 1, Message: "Type 'string' is not assignable to type 'number'.", Range: span{Start: position{0, 6}}},
			problem{Severity: 1, Message: "Property 'toFix' does not exist on type 'number'. Did you mean 'toFixed'?", Range: span{Start: position{1, 2}}})
		l.completes(t, uri, position{1, len("n.toFix")}, "toFixed")
		l.change(t, uri, 2, "const n: number = 1;\nn.toFixed();\n")
		l.finds(t, uri)
		l.server.Close()
		c.noSuchProcess(t, s.ID, "tsserver.js")
	})
}

// atLength skips what make e2e tests and make test does not: what takes minutes under an
// emulated processor, such as the templates of languages, and is tested otherwise, too.
func atLength(t *testing.T) {
	t.Helper()
	if !length() {
		t.Skip("make e2e tests it (BERTH_TEST_LENGTH=1)")
	}
}

func length() bool { return os.Getenv("BERTH_TEST_LENGTH") == "1" }

// A kernel that runs already executes cells at once, and goes on in each fork,
// where it draws random numbers of its own.
func TestCodeInterpreterTemplate(t *testing.T) {
	atLength(t)
	t.Parallel()
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.of(t, "code-interpreter")
	execute := func(t *testing.T, id, code string) (result string) {
		t.Helper()
		raw, err := json.Marshal(object{"code": code})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, 2*time.Minute, "the interpreter of "+id+" executes "+code, func(context.Context) error {
			got := visit(t, browser(t, 0), "POST", "http://"+previewHost(8888, id)+"/execute",
				map[string]string{"Content-Type": "application/json"}, bytes.NewReader(raw))
			if got.status != 200 {
				return fmt.Errorf("%d %s", got.status, clip(got.body))
			}
			var cell struct {
				Status  string `json:"status"`
				Outputs []struct {
					Text string         `json:"text"` // of a stream
					Data map[string]any `json:"data"` // of a result, by media type
				} `json:"outputs"`
			}
			if err := json.Unmarshal([]byte(got.body), &cell); err != nil || cell.Status != "ok" || len(cell.Outputs) != 1 {
				t.Fatalf("executing %s: %v, %s", code, err, clip(got.body))
			}
			result = cell.Outputs[0].Text
			for mediaType := range cell.Outputs[0].Data {
				result += mediaType + " "
			}
			return nil
		})
		return result
	}
	if got := execute(t, s.ID, "data = pandas.DataFrame({'n': numpy.arange(5)}); print(data.n.sum())"); got != "10\n" {
		t.Errorf("a sum of 0 to 4 is %q", got)
	}
	if got := execute(t, s.ID, "matplotlib.pyplot.plot(data.n); None"); !strings.Contains(got, "image/png") {
		t.Errorf("a plot is %q", got)
	}
	drawn := map[string]string{}
	for _, child := range append(c.forkTree(t, s.ID, 2, "").Children, *s) {
		if got := execute(t, child.ID, "print(len(data))"); got != "5\n" {
			t.Errorf("%s has the parent's data as %q", child.ID, got)
		}
		number := execute(t, child.ID, "import random; print(random.getrandbits(64), numpy.random.random())")
		if twin, ok := drawn[number]; ok {
			t.Errorf("%s and %s drew %s", twin, child.ID, number)
		}
		drawn[number] = child.ID
	}
}

// A template of the hosts' operator is built by the first create that names it,
// and has builds and a log as any other.
func TestATemplateIsBuiltWhenItIsFirstAskedFor(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.make(t, api.CreateSandbox{Template: "later"})
	if got := c.run(t, s.ID, "cat /built"); got != "built" {
		t.Errorf("the sandbox has %q", got)
	}
	tpl, err := c.GetTemplate(t.Context(), "later")
	if err != nil || tpl.Status != api.TemplateReady || tpl.BuildID == "" {
		t.Fatalf("%+v, %v", tpl, err)
	}
	b, err := c.GetBuild(t.Context(), tpl.BuildID)
	if err != nil || b.Status != api.TemplateReady || b.Template != "later" {
		t.Errorf("%+v, %v", b, err)
	}
	said := ""
	end, err := c.FollowBuild(t.Context(), tpl.BuildID, func(l api.BuildLog) error { said += l.Line + "\n"; return nil })
	if err != nil || end.Status != api.TemplateReady || !strings.Contains(said, "==> ready") {
		t.Errorf("%+v, %v; it said %q", end, err, said)
	}
	refusal(t, c.DeleteTemplate(t.Context(), "later"), 409, "template in use")
	if err := c.DeleteSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	refusal(t, c.DeleteTemplate(t.Context(), "later"), 403, "template is not yours")
}

// languageTime is several times what a language server takes, from its start to
// the last answer, on a machine with two cores that are busy.
const languageTime = 10 * time.Minute

// conversation is one with a language server.
type conversation struct {
	server   *api.LanguageServer
	asked    int
	problems map[string][]problem // as published last, by document
}

// Of the Language Server Protocol. Lines and characters begin at 0.
type (
	position struct {
		Line      int `json:"line"`
		Character int `json:"character"`
	}
	span struct {
		Start position `json:"start"`
	}
	problem struct {
		Severity int    `json:"severity"` // 1 is an error
		Message  string `json:"message"`
		Range    span   `json:"range"`
	}
	object = map[string]any
)

// speak starts a sandbox's language server, which ends with the test, and shakes
// hands with it.
func (c *tenant) speak(t *testing.T, id, lang, root string, options object) *conversation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), languageTime)
	t.Cleanup(cancel)
	server, err := c.OpenLanguageServer(ctx, id, lang)
	if err != nil {
		t.Fatal(err)
	}
	l := &conversation{server: server, problems: map[string][]problem{}}
	var hello struct {
		Capabilities struct {
			CompletionProvider *object `json:"completionProvider"`
		} `json:"capabilities"`
	}
	l.ask(t, "initialize", object{"processId": nil, "rootUri": root, "initializationOptions": options, "capabilities": object{
		"textDocument": object{"publishDiagnostics": object{}, "completion": object{}},
	}}, &hello)
	if hello.Capabilities.CompletionProvider == nil {
		t.Error("it does not say that it completes")
	}
	l.tell(t, "initialized", object{})
	return l
}

func (l *conversation) send(t *testing.T, message object) {
	t.Helper()
	message["jsonrpc"] = "2.0"
	raw, err := json.Marshal(message)
	if err == nil {
		err = l.server.Send(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tell sends what has no answer.
func (l *conversation) tell(t *testing.T, method string, params object) {
	t.Helper()
	l.send(t, object{"method": method, "params": params})
}

// ask sends a request and waits for its answer.
func (l *conversation) ask(t *testing.T, method string, params object, into any) {
	t.Helper()
	l.asked++
	l.send(t, object{"id": l.asked, "method": method, "params": params})
	for {
		m := l.hear(t, "the answer to "+method)
		if m.Method != "" || string(m.ID) != fmt.Sprint(l.asked) {
			continue
		}
		if m.Error != nil {
			t.Fatalf("%s: %s", method, m.Error)
		}
		if err := json.Unmarshal(m.Result, into); err != nil {
			t.Fatalf("%s: %v: %s", method, err, clip(string(m.Result)))
		}
		return
	}
}

type heard struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// hear takes in the server's next message. Its own requests are answered with
// nothing, which each of them may be.
func (l *conversation) hear(t *testing.T, awaited string) heard {
	t.Helper()
	raw, err := l.server.Receive()
	if err != nil {
		t.Fatalf("while waiting for %s: %v; published so far: %+v", awaited, err, l.problems)
	}
	var m heard
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatalf("%v: %s", err, clip(string(raw)))
	}
	switch {
	case m.Method == "textDocument/publishDiagnostics":
		var p struct {
			URI         string    `json:"uri"`
			Diagnostics []problem `json:"diagnostics"`
		}
		if err := json.Unmarshal(m.Params, &p); err != nil {
			t.Fatalf("%v: %s", err, clip(string(m.Params)))
		}
		l.problems[p.URI] = p.Diagnostics
	case m.Method != "" && m.ID != nil:
		l.send(t, object{"id": m.ID, "result": nil})
	}
	return m
}

func (l *conversation) open(t *testing.T, uri, language, text string) {
	t.Helper()
	l.tell(t, "textDocument/didOpen", object{"textDocument": object{"uri": uri, "languageId": language, "version": 1, "text": text}})
}

// change replaces a document. What was published of it is forgotten.
func (l *conversation) change(t *testing.T, uri string, version int, text string) {
	t.Helper()
	delete(l.problems, uri)
	l.tell(t, "textDocument/didChange", object{
		"textDocument": object{"uri": uri, "version": version}, "contentChanges": []object{{"text": text}},
	})
}

// finds waits until the errors that are published of a document are these and
// no others. A server may publish the quicker ones of its checks first.
func (l *conversation) finds(t *testing.T, uri string, want ...problem) {
	t.Helper()
	for {
		got, published := l.problems[uri]
		if published && sameErrors(got, want) {
			return
		}
		l.hear(t, fmt.Sprintf("the problems %+v", want))
	}
}

func sameErrors(got, want []problem) bool {
	errs := slices.DeleteFunc(slices.Clone(got), func(p problem) bool { return p.Severity != 1 }) // others are a matter of style
	return len(errs) == len(want) && !slices.ContainsFunc(want, func(p problem) bool { return !slices.Contains(errs, p) })
}

// completes wants a word among those that the server would go on with.
func (l *conversation) completes(t *testing.T, uri string, at position, word string) {
	t.Helper()
	type item struct {
		Label string `json:"label"`
	}
	var answer json.RawMessage
	l.ask(t, "textDocument/completion", object{"textDocument": object{"uri": uri}, "position": at}, &answer)
	var items []item
	if json.Unmarshal(answer, &items) != nil { // it is a list, or has one
		var list struct {
			Items []item `json:"items"`
		}
		if err := json.Unmarshal(answer, &list); err != nil {
			t.Fatalf("%v: %s", err, clip(string(answer)))
		}
		items = list.Items
	}
	for _, i := range items {
		if strings.HasPrefix(i.Label, word) {
			return
		}
	}
	t.Errorf("of %d completions none is %s: %s", len(items), word, clip(string(answer)))
}
