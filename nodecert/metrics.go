package nodecert

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Ends returns when the certificate that is in use ends ("node"), and when that of the
// authority does which signed it ("ca").
func (c *Certificate) Ends() map[string]time.Time {
	leaf := c.Leaf()
	out := map[string]time.Time{"node": leaf.NotAfter}
	if ca := c.trust.Issuer(leaf); ca != nil {
		out["ca"] = ca.NotAfter
	}
	return out
}

// Remaining is a metric of how long certificates are still valid. ends returns when each
// ends.
func Remaining(name string, ends func() map[string]time.Time) prometheus.Collector {
	return &remaining{prometheus.NewDesc(name, "For how long a certificate is still valid; below 0: it has ended.", []string{"certificate"}, nil), ends}
}

type remaining struct {
	desc *prometheus.Desc
	ends func() map[string]time.Time
}

// Describe implements prometheus.Collector.
func (r *remaining) Describe(ch chan<- *prometheus.Desc) { ch <- r.desc }

// Collect implements prometheus.Collector.
func (r *remaining) Collect(ch chan<- prometheus.Metric) {
	for certificate, end := range r.ends() {
		ch <- prometheus.MustNewConstMetric(r.desc, prometheus.GaugeValue, time.Until(end).Seconds(), certificate)
	}
}
