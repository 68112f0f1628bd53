-- Question: Is the staleness of the run exactly what its schedule predicts?
-- One row: the measured mean of d beside what boundary dispatch makes of it in a run of T steps of B groups,
-- phi + (mu - 1) / 2 - age_left / (T B), `age_left` = the summed age of the groups left unconsumed. The
-- difference is worked out in whole numbers, over 2 n T B: it is 0 exactly or it is not. Null where a version
-- or a setting is unknown.
-- Then: any difference but 0 is a group that was lost, consumed twice or dispatched off schedule: run the
-- audits.
-- Empty: no step has been committed and no group consumed.
-- Key: steps
with run as (
    select count(*) as steps, max(new_version) as version
    from steps
    where new_version is not null
),

consumed as (
    select count(*) as n, count(d) as known, coalesce(sum(d), 0)::hugeint as d_sum
    from staleness
),

unconsumed as (
    select coalesce(sum(r.version - g.dispatch_version), 0)::hugeint as age
    from groups as g
    cross join run as r
    where g.state <> 'CONSUMED'
),

terms as (
    select
        p.phi,
        p.mu,
        p.groups_per_step,
        r.steps,
        c.n,
        c.known,
        c.d_sum,
        u.age,
        (r.steps * p.groups_per_step)::hugeint as planned,
        round(p.phi * p.groups_per_step)::hugeint as phi_groups
    from run_settings as p
    cross join run as r
    cross join consumed as c
    cross join unconsumed as u
    where r.steps > 0 or c.n > 0
),

wholes as (
    select
        *,
        2 * steps * phi_groups + planned * (mu - 1) - 2 * age as predicted_2tb,
        n = known and n > 0 and planned > 0 as computable
    from terms
),

final as (
    select
        steps,
        groups_per_step,
        phi,
        mu,
        n as groups_consumed,
        n - known as groups_of_unknown_version,
        age::bigint as age_left,
        case when computable then d_sum::double / n end as d_mean,
        case when computable then predicted_2tb::double / (2 * planned) end as predicted,
        case when computable then (2 * d_sum * planned - n * predicted_2tb)::double / (2 * n * planned) end
            as difference
    from wholes
)

select * from final
