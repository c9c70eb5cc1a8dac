// Package monitoring checks the dashboards and alert rules of this directory.
package monitoring

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/berth-cloud/berth/telemetry/telemetrytest"
	"github.com/berth-cloud/berth/tier"
)

const document = "../monitoring.md"

var (
	metric   = regexp.MustCompile(`\b(berth_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-zA-Z_]+)\s*(?:=~|!~|!=|=)\s*"`)
	grouping = regexp.MustCompile(`\b(?:by|without)\s*\(([^)]*)\)`)
	word     = regexp.MustCompile(`[a-zA-Z_]+`)
)

// scraped are the labels that Prometheus itself adds.
var scraped = []string{"instance", "job", "le"}

// check fails the test if an expression names a metric or a label that is not exported.
func check(t *testing.T, where, expr string, exported map[string]telemetrytest.Metric) {
	t.Helper()
	var labels []string // of the metrics that it names
	for _, m := range metric.FindAllStringSubmatch(expr, -1) {
		name := m[1]
		known, ok := exported[name]
		if !ok {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base, cut := strings.CutSuffix(name, suffix); cut && exported[base].Type == "histogram" {
					known, ok = exported[base], true
				}
			}
		} else if known.Type == "histogram" {
			t.Errorf("%s: %s is a histogram, and has no value of its own", where, name)
		}
		if !ok {
			t.Errorf("%s: %s is not exported", where, name)
		}
		if known.Type == "counter" && !regexp.MustCompile(`(rate|increase)\(`+name+`\b`).MatchString(expr) {
			t.Errorf("%s: %s is a counter, and shown as it is", where, name)
		}
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(known.Labels, l[1]) && !slices.Contains(scraped, l[1]) {
				t.Errorf("%s: %s has no label %s", where, name, l[1])
			}
		}
		labels = append(labels, known.Labels...)
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for _, l := range word.FindAllString(g[1], -1) {
			if !slices.Contains(labels, l) && !slices.Contains(scraped, l) {
				t.Errorf("%s: nothing has the label %s, by which it is grouped", where, l)
			}
		}
	}
	if strings.Count(expr, "(") != strings.Count(expr, ")") || strings.Count(expr, "{") != strings.Count(expr, "}") {
		t.Errorf("%s: the brackets of %s do not match", where, expr)
	}
}

type dashboard struct {
	UID, Title string
	Panels     []struct {
		ID          int
		Type, Title string
		GridPos     struct{ X, Y, W, H int }
		Targets     []struct{ Expr, LegendFormat string }
	}
}

func TestDashboardsShowWhatIsExported(t *testing.T) {
	exported := telemetrytest.Document(t, document)
	files, err := filepath.Glob("dashboards/*.json")
	if err != nil || len(files) != 5 {
		t.Fatalf("%v, %v", files, err)
	}
	shown, uids := "", map[string]bool{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(raw, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if d.UID == "" || d.Title == "" || uids[d.UID] {
			t.Errorf("%s: uid %q, title %q", file, d.UID, d.Title)
		}
		uids[d.UID] = true
		ids, places := map[int]bool{}, map[[2]int]bool{}
		for _, p := range d.Panels {
			place := [2]int{p.GridPos.X, p.GridPos.Y}
			if ids[p.ID] || places[place] || p.GridPos.X+p.GridPos.W > 24 || p.Title == "" {
				t.Errorf("%s: panel %d, %q, is in the way of another", file, p.ID, p.Title)
			}
			ids[p.ID], places[place] = true, true
			if p.Type != "row" && len(p.Targets) == 0 {
				t.Errorf("%s: %q shows nothing", file, p.Title)
			}
			for _, target := range p.Targets {
				check(t, file+": "+p.Title, target.Expr, exported)
				shown += target.Expr + "\n"
			}
		}
	}
	// Nor is anything exported that no dashboard shows, but for what only explains others.
	unshown := []string{"berth_raft_term", "berth_raft_last_log_index", "berth_raft_last_snapshot_index"}
	for name := range exported {
		if !regexp.MustCompile(name+`\b|`+name+`_(bucket|sum|count)\b`).MatchString(shown) && !slices.Contains(unshown, name) {
			t.Errorf("no dashboard shows %s", name)
		}
	}
}

type rules struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

type rule struct {
	Alert, Expr, For string
	Labels           map[string]string
	Annotations      map[string]string
}

func TestAlertsAreOfWhatIsExportedAndSayWhatToDo(t *testing.T) {
	exported := telemetrytest.Document(t, document)
	raw, err := os.ReadFile("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var all rules
	if err := yaml.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, g := range all.Groups {
		for _, r := range g.Rules {
			if names[r.Alert] || !strings.HasPrefix(r.Alert, "Berth") {
				t.Errorf("%s has no name of its own", r.Alert)
			}
			names[r.Alert] = true
			if r.For == "" || r.Labels["severity"] != "page" && r.Labels["severity"] != "ticket" || r.Annotations["summary"] == "" {
				t.Errorf("%s lacks for, a severity or a summary", r.Alert)
			}
			check(t, r.Alert, r.Expr, exported)
			checkRunbook(t, r)
		}
	}
	if len(names) < 20 {
		t.Errorf("%d alerts", len(names))
	}
}

// checkRunbook fails the test unless a rule's runbook is a section of a document.
func checkRunbook(t *testing.T, r rule) {
	t.Helper()
	file, section, _ := strings.Cut(r.Annotations["runbook"], "#")
	raw, err := os.ReadFile(filepath.Join("..", "..", file))
	if file == "" || err != nil {
		t.Errorf("%s: runbook %q: %v", r.Alert, r.Annotations["runbook"], err)
		return
	}
	if section == "" {
		return
	}
	for line := range strings.Lines(string(raw)) {
		if title := strings.TrimSpace(strings.TrimLeft(line, "#")); strings.HasPrefix(line, "##") && strings.ReplaceAll(strings.ToLower(title), " ", "-") == section {
			return
		}
	}
	t.Errorf("%s: %s has no section %s", r.Alert, file, section)
}

// Prometheus itself reads the rules, and tests them.
func TestPrometheusAcceptsTheRules(t *testing.T) {
	promtool := tier.Program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
