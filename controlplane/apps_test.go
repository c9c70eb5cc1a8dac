package controlplane

import (
	"strings"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"
)

func appsFrom(t *testing.T, vars map[string]string) Apps {
	t.Helper()
	out, err := env.ParseAsWithOptions[Apps](env.Options{Environment: vars})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAppSettings(t *testing.T) {
	t.Parallel()
	c := appsFrom(t, nil)
	if err := c.validate(); err != nil || *c.DeployBudget != 12*time.Minute || *c.AppSweep != 30*time.Second || *c.AppMinIdle != time.Minute ||
		*c.AppDrain != 5*time.Minute || *c.LastRequest != time.Minute || *c.AppMaxPerWorkspace != 100 || *c.AppCacheMB != 1024 || c.GitAllowHTTP {
		t.Errorf("defaults %+v: %v", c, err)
	}
	if err := (&Apps{}).validate(); err != nil {
		t.Errorf("none set: %v", err)
	}
	for name, value := range map[string]string{
		"BERTH_DEPLOY_BUDGET": "0s", "BERTH_APP_SWEEP": "10ms", "BERTH_APP_MIN_IDLE": "1500ms", "BERTH_APP_DRAIN": "-1s", "BERTH_APP_MAX_PER_WORKSPACE": "-1",
		"BERTH_APP_CACHE_MB": "1025", "BERTH_APP_LAST_REQUEST": "2h",
	} {
		c := appsFrom(t, map[string]string{name: value})
		if err := c.validate(); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	long := appsFrom(t, map[string]string{"BERTH_APP_MIN_IDLE": "25h"})
	if err := long.validate(); err == nil {
		t.Error("a day and more is taken")
	}
}
