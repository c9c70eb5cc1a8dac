package nodecert

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestEndsAreThoseOfTheCertificateAndOfTheCAThatSignedIt(t *testing.T) {
	ends := newRig(t, 30*day).Certificate.Ends()
	if len(ends) != 2 || !ends["node"].Equal(start.Add(30*day)) || !ends["ca"].Equal(start.Add(10*365*day)) {
		t.Errorf("the ends are %v", ends)
	}
}

func TestWhatRemainsIsAMetric(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(Remaining("berth_x_seconds", func() map[string]time.Time {
		return map[string]time.Time{"good": time.Now().Add(day), "ended": time.Now().Add(-day)}
	}))
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%v, %v", families, err)
	}
	for _, m := range families[0].GetMetric() {
		days := m.GetGauge().GetValue() / day.Seconds()
		if name := m.GetLabel()[0].GetValue(); name == "good" != (days > 0.9) || name == "ended" != (days < -0.9) {
			t.Errorf("%s remains for %f days", name, days)
		}
	}
}
