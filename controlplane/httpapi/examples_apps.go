package httpapi

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

var (
	exampleCreateApp = api.CreateApp{
		Name: "storefront", GitURL: "https://github.com/example/storefront", GitBranch: "main", BuildCommand: "npm run build", StartCommand: "npm start",
		Env: api.StringMap{"LOG_LEVEL": "info"}, IdleTimeoutSeconds: new(900), AutoDeploy: true,
	}
	exampleNewApp = api.App{
		ID: "app-k7m2qz4xw3v5n6a2j7p4", Name: "storefront", Status: api.AppCreated, URL: "https://app-k7m2qz4xw3v5n6a2j7p4.app.example.com/",
		GitURL: exampleCreateApp.GitURL, GitBranch: "main", BuildCommand: "npm run build", StartCommand: "npm start", Port: 3000,
		MaxInstances: 1, AutoHibernate: true, IdleTimeoutSeconds: 900, AutoDeploy: true, Previews: true, Env: map[string]string{"LOG_LEVEL": "info"},
		CreatedAt: exampleAt, UpdatedAt: exampleAt,
	}
	exampleApp = func() api.App {
		a := exampleNewApp
		a.Status, a.Instances, a.SandboxID, a.DeploymentID = api.AppRunning, 1, exampleSandbox.ID, exampleDeploymentID
		a.Env = map[string]string{"LOG_LEVEL": "info", "STRIPE_KEY": "********"}
		a.LastRequestAt, a.UpdatedAt = &exampleExpires, exampleExpires
		return a
	}()
	examplePatchApp = api.PatchApp{StartCommand: api.SetTo("node server.js"), IdleTimeoutSeconds: api.SetTo(3600), MaxInstances: api.SetNull[int]()}

	exampleDeploymentID  = "dep-z2q4m6w2k4t6r2p7j5dc"
	exampleCreateDeploy  = api.CreateDeployment{GitRef: "main"}
	exampleNewDeployment = api.Deployment{
		ID: exampleDeploymentID, AppID: exampleNewApp.ID, Status: api.DeploymentQueued, GitRef: "main", Source: api.AppFromGit,
		Trigger: api.TriggerAPI, CreatedAt: exampleAt, Phases: []api.DeploymentPhase{},
	}
	exampleLiveDeployment = func() api.Deployment {
		d := exampleNewDeployment
		d.Status, d.Current = api.DeploymentLive, true
		d.GitCommit, d.GitMessage, d.GitAuthor = "9b1f6e0c48a27d93a5be6c19d7f2038e5a4c1b20", "Show prices with tax", "Ann Example <ann@example.com>"
		d.StartedAt, d.FinishedAt = &exampleStarted, &api.Time{Time: exampleAt.Add(41 * time.Second)}
		d.Phases = []api.DeploymentPhase{{Name: "queue", DurationMS: 231}, {Name: "source", DurationMS: 1480}, {Name: "build", DurationMS: 21870}}
		d.Framework, d.Runtime, d.StartCommand = "nextjs", "node 22.14.0", "npm start"
		return d
	}()
	exampleCancelled = func() api.Deployment {
		d := exampleNewDeployment
		d.Status, d.Error, d.FinishedAt = api.DeploymentFailed, "cancelled", &exampleExpires
		return d
	}()
	exampleRollback = func() api.Deployment {
		d := exampleNewDeployment
		d.ID, d.Trigger, d.RollbackTo = "dep-w2k4t6r2p7j5dcz2q4m6", api.TriggerRollback, exampleDeploymentID
		d.GitCommit, d.GitMessage, d.GitAuthor = exampleLiveDeployment.GitCommit, exampleLiveDeployment.GitMessage, exampleLiveDeployment.GitAuthor
		return d
	}()

	exampleVariable = api.AppVariable{Key: "LOG_LEVEL", Value: "info", UpdatedAt: exampleAt}
	exampleSecret   = api.AppVariable{Key: "STRIPE_KEY", Value: "********", Secret: true, Scope: "production", UpdatedAt: exampleExpires}

	exampleNewDomain = api.AppDomain{
		Domain: "shop.example.com", AppID: exampleNewApp.ID, Status: api.DomainPending, URL: "https://shop.example.com/",
		DNS: []api.DNSRecord{
			{Type: "TXT", Name: "_berth.shop.example.com", Value: "berth-verify-k7m2qz4xw3v5n6a2j7p4k7m2qz4xw3v5"},
			{Type: "CNAME", Name: "shop.example.com", Value: exampleNewApp.ID + ".app.example.com"},
		},
		Certificate: api.DomainCertificate{Status: api.CertificateNone}, NextCheckAt: &exampleStarted, CreatedAt: exampleAt,
	}
	exampleDomain = func() api.AppDomain {
		d := exampleNewDomain
		d.Status, d.CheckedAt, d.VerifiedAt, d.NextCheckAt = api.DomainVerified, &exampleStarted, &exampleStarted, &exampleExpires
		d.Certificate = api.DomainCertificate{Status: api.CertificateIssued, ExpiresAt: &exampleExpires}
		return d
	}()
)
