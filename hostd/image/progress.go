package image

import "time"

// Progress is the progress of a build. It is reported at the beginning and end of
// each step, and within a step if more is known.
type Progress struct {
	Template string
	Step     string        // "bootstrap", "pull", "root image", "run", "boot", "store"
	Detail   string        // for people: a package, a command, a line of output
	Output   bool          // Detail is a line that a step or the start command has printed
	Percent  int           // of the whole build, 0 to 100
	Elapsed  time.Duration // since the build began
}

// Steps of a build, with the percentage at which each begins. The bootstrap is
// nearly all of a first build, and not part of a second one.
const (
	StepBootstrap = "bootstrap"
	StepPull      = "pull"
	StepImage     = "root image"
	StepRun       = "run"
	StepBoot      = "boot"
	StepStore     = "store"
	StepDone      = "done"
)

var stepBegins = map[string]int{
	StepBootstrap: 0, StepPull: 0, StepImage: 70, StepRun: 78, StepBoot: 88, StepStore: 96, StepDone: 100,
}

// reporter reports progress; its zero value reports to nobody.
type reporter struct {
	template string
	began    time.Time
	tell     func(Progress)
}

func newReporter(template string, tell func(Progress)) *reporter {
	return &reporter{template: template, began: time.Now(), tell: tell}
}

// step reports that a step is done by part (0 to 1).
func (r *reporter) step(step string, part float64, detail string) {
	r.report(step, part, detail, false)
}

// output reports a line that was printed in the guest.
func (r *reporter) output(step string, part float64, line string) { r.report(step, part, line, true) }

func (r *reporter) report(step string, part float64, detail string, output bool) {
	if r.tell == nil {
		return
	}
	from, to := stepBegins[step], 100
	for _, p := range stepBegins {
		if p > from && p < to {
			to = p
		}
	}
	r.tell(Progress{
		Template: r.template, Step: step, Detail: detail, Output: output,
		Percent: from + int(part*float64(to-from)), Elapsed: time.Since(r.began),
	})
}
