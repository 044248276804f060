//! The clock, as nanoseconds since 1970 and as RFC 3339 text.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Gives the present in nanoseconds since 1970.
pub fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Converts nanoseconds since 1970, which may be negative.
pub(crate) fn system_time(at_ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(at_ns.unsigned_abs());
    if at_ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// Spells a time in seconds, UTC: `2026-11-29T16:00:00Z`. Source of the calendar arithmetic: Howard Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
pub fn rfc3339(at_ns: i64) -> String {
    let seconds = at_ns.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn known_instants() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696_000_000_000), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(1_795_968_000_000_000_000), "2026-11-29T16:00:00Z");
    }
}
