package edge

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestClasses(t *testing.T) {
	const uptimeRobot, google = "Mozilla/5.0+(compatible; UptimeRobot/2.0; http://www.uptimerobot.com/)", "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
	for _, c := range []struct {
		method, path, agent string
		want                class
	}{
		// Any path or method of a monitor.
		{"GET", "/", uptimeRobot, classMonitor},
		{"HEAD", "/", uptimeRobot, classMonitor},
		{"POST", "/api", uptimeRobot, classMonitor},
		{"OPTIONS", "/", uptimeRobot, classMonitor},
		{"GET", "/favicon.ico", uptimeRobot, classMonitor},
		{"GET", "/healthz", uptimeRobot, classMonitor},

		{"HEAD", "/", browser, classQuiet},
		{"HEAD", "/health", browser, classQuiet},
		{"HEAD", "/", "", classQuiet},
		{"HEAD", "/", google, classQuiet},
		{"GET", "/favicon.ico", browser, classQuiet},
		{"GET", "/robots.txt", google, classQuiet},
		{"GET", "/sitemap.xml", "", classQuiet},
		{"GET", "/apple-touch-icon.png", browser, classQuiet},
		{"GET", "/favicon.ico?v=2", browser, classQuiet},

		{"OPTIONS", "/api", browser, classServed},
		{"GET", "/health", browser, classServed},
		{"GET", "/healthz", browser, classServed},
		{"GET", "/healthcheck", browser, classServed},
		{"GET", "/livez", browser, classServed},
		{"GET", "/readyz", browser, classServed},
		{"GET", "/ping", browser, classServed},
		{"POST", "/status", browser, classServed},
		{"GET", "/up", browser, classServed},
		{"GET", "/_health", browser, classServed},
		{"GET", "/_healthz?full=1", browser, classServed},
		{"GET", "/.well-known/acme-challenge/x", browser, classServed},
		{"GET", "/.well-known/", browser, classServed},
		{"GET", "/", google, classServed},
		{"GET", "/", "", classServed},
		{"GET", "/", "  ", classServed},

		{"GET", "/", browser, classReal},
		{"POST", "/", browser, classReal},
		{"DELETE", "/x", "curl/8.5.0", classReal},
		{"GET", "/", "python-requests/2.32.3", classReal},
		{"GET", "/api/health", browser, classReal},
		{"GET", "/Health", browser, classReal},
		{"GET", "/healthy", browser, classReal},
		{"GET", "/static/favicon.ico", browser, classReal},
		{"GET", "/.well-known", browser, classReal},
		{"GET", "/apple-touch-icon-precomposed.png", browser, classReal},
	} {
		r := httptest.NewRequest(c.method, c.path, http.NoBody)
		r.Header.Set("User-Agent", c.agent)
		got := classify(r)
		if got != c.want {
			t.Errorf("%s %s by %q is %s, want %s", c.method, c.path, c.agent, got, c.want)
		}
	}
	for _, c := range []struct {
		class         class
		wakes, resets bool
	}{{classReal, true, true}, {classServed, true, false}, {classQuiet, false, false}, {classMonitor, false, false}} {
		if c.class.wakes() != c.wakes || c.class.resetsIdle() != c.resets {
			t.Errorf("%s: wakes %v, resets %v", c.class, c.class.wakes(), c.class.resetsIdle())
		}
	}
	none := httptest.NewRequest("GET", "/", http.NoBody)
	none.Header.Del("User-Agent")
	if classify(none) != classServed {
		t.Error("no User-Agent at all is an empty one")
	}
}

// User-Agents as their programs send them.
func TestPrograms(t *testing.T) {
	for _, agent := range []string{
		"Mozilla/5.0+(compatible; UptimeRobot/2.0; http://www.uptimerobot.com/)",
		"Pingdom.com_bot_version_1.4_(http://www.pingdom.com/)",
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/98.0.4758.102 Safari/537.36 PingdomTMS/2.0",
		"Mozilla/5.0 (Windows NT 6.1; WOW64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/121.0.0.0 Safari/537.36 StatusCake",
		"Better Uptime Bot Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/125.0 Safari/537.36",
		"Better Stack Better Uptime Bot Mozilla/5.0",
		"Site24x7",
		"Datadog/Synthetics",
		"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36 DatadogSynthetics",
		"NewRelicPinger/1.0 (1234567)",
		"Checkly/1.0 (https://www.checklyhq.com)",
		"updown.io daemon 2.11",
		"FreshpingBot/1.0 (+https://freshping.io/)",
		"HetrixTools Uptime Monitoring Bot. https://hetrix.tools/uptime-monitoring-bot.html",
		"Uptime-Kuma/1.23.13",
		"GoogleStackdriverMonitoring-UptimeChecks(https://cloud.google.com/monitoring)",
		"GoogleHC/1.0",
		"Amazon-Route53-Health-Check-Service (ref 1a2b; report http://amzn.to/1vsZADi)",
		"ELB-HealthChecker/2.0",
		"Mozilla/5.0 (compatible;Cloudflare-Healthchecks/1.0;+https://www.cloudflare.com/; healthcheck-id: 1)",
		"Mozilla/5.0 (compatible; Cloudflare-Traffic-Manager/1.0; +https://www.cloudflare.com/traffic-manager/;)",
		"NodePing",
		"check_http/v2.3.3 (nagios-plugins 2.3.3)",
		"check_curl/v2.3.3 (monitoring-plugins 2.3.3, libcurl/7.88.1)",
		"Zabbix",
		"Blackbox Exporter/0.25.0",
		"Prometheus/2.53.0",
		"kube-probe/1.30",
		"Consul Health Check",
		"Azure Traffic Manager Endpoint Monitor",
		"SentryUptimeBot/1.0 (+http://docs.sentry.io/product/alerts/uptime-monitoring/)",
		"CloudWatchSynthetics/arn:aws:synthetics:us-east-1:1:canary:x",
		"Mozilla/5.0 (compatible; OhDear/1.1; +https://ohdear.app/checker)",
		"Mozilla/5.0 (compatible; StatusPage.io)",
	} {
		if c := ofAgent(agent); c != classMonitor {
			t.Errorf("%q is %s", agent, c)
		}
	}
	for _, agent := range []string{
		"Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; Googlebot/2.1; +http://www.google.com/bot.html) Chrome/125.0.0.0 Safari/537.36",
		"Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm) Chrome/116.0 Safari/537.36",
		"DuckDuckBot/1.1; (+http://duckduckgo.com/duckduckbot.html)",
		"Mozilla/5.0 (compatible; Baiduspider/2.0; +http://www.baidu.com/search/spider.html)",
		"Mozilla/5.0 (compatible; YandexBot/3.0; +http://yandex.com/bots)",
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_5) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/13.1.1 Safari/605.1.15 (Applebot/0.1; +http://www.apple.com/go/applebot)",
		"Mozilla/5.0 (compatible; Yahoo! Slurp; http://help.yahoo.com/help/us/ysearch/slurp)",
		"facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)",
		"meta-externalagent/1.1 (+https://developers.facebook.com/docs/sharing/webmasters/crawler)",
		"Twitterbot/1.0",
		"LinkedInBot/1.0 (compatible; Mozilla/5.0; Apache-HttpClient +http://www.linkedin.com)",
		"Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)",
		"Mozilla/5.0 (compatible; Discordbot/2.0; +https://discordapp.com)",
		"TelegramBot (like TwitterBot)",
		"WhatsApp/2.23.20.0",
		"Mozilla/5.0 (compatible; Pinterestbot/1.0; +http://www.pinterest.com/bot.html)",
		"Mozilla/5.0 (compatible; redditbot/1.0; +http://www.reddit.com/feedback)",
		"Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; GPTBot/1.2; +https://openai.com/gptbot)",
		"Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; ClaudeBot/1.0; +claudebot@anthropic.com)",
		"Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; PerplexityBot/1.0; +https://perplexity.ai/perplexitybot)",
		"CCBot/2.0 (https://commoncrawl.org/faq/)",
		"Mozilla/5.0 (compatible; AhrefsBot/7.0; +http://ahrefs.com/robot/)",
		"Mozilla/5.0 (compatible; SemrushBot/7~bl; +http://www.semrush.com/bot.html)",
		"Mozilla/5.0 (compatible; MJ12bot/v1.4.8; http://mj12bot.com/)",
		"Mozilla/5.0 (Linux; Android 5.0) AppleWebKit/537.36 (KHTML, like Gecko) Mobile Safari/537.36 (compatible; Bytespider; spider-feedback@bytedance.com)",
		"Mozilla/5.0 (compatible; PetalBot;+https://webmaster.petalsearch.com/site/petalbot)",
		"Mozilla/5.0 (compatible; SeznamBot/4.0; +http://napoveda.seznam.cz/seznambot-intro/)",
	} {
		if c := ofAgent(agent); c != classServed {
			t.Errorf("%q is %s", agent, c)
		}
	}
	for _, agent := range []string{ // people, and programs that use an app
		browser,
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36 Edg/140.0.0.0",
		"Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Mobile/15E148 Safari/604.1",
		"Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148 [FBAN/FBIOS;FBAV/480.0]",
		"Mozilla/5.0 (Linux; Android 14; SM-S918B) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Mobile Safari/537.36 [Pinterest/Android]",
		"Mozilla/5.0 (Linux; Android 14) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Mobile Safari/537.36 (Ecosia android@126.0)",
		"Mozilla/5.0 (Macintosh) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.4 Safari/605.1.15 Ddg/17.4",
		"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 YaBrowser/24.6 Safari/537.36",
		"Opera/9.80 (Android; Opera Mini/36.2) Presto/2.12.423 Version/12.16",
		"curl/8.5.0", "Wget/1.21.4", "Go-http-client/2.0", "python-requests/2.32.3", "axios/1.7.2", "okhttp/4.12.0", "node", "PostmanRuntime/7.39.0", "grpc-go/1.65.0",
	} {
		if c := ofAgent(agent); c != classReal {
			t.Errorf("%q is %s", agent, c)
		}
	}
}

func ofAgent(agent string) class {
	r := httptest.NewRequest("GET", "/", http.NoBody)
	r.Header.Set("User-Agent", agent)
	return classify(r)
}

func BenchmarkClassify(b *testing.B) {
	r := httptest.NewRequest("GET", "/x", http.NoBody)
	r.Header.Set("User-Agent", browser)
	for b.Loop() {
		classify(r)
	}
}
