-- Question: How does training go, step by step?
-- One row a committed step: what it learned from, how far the weights moved, how stale its groups were.
-- Then: a score that stands still with a falling norm asks for score_by_step and zero_variance; one that
-- falls for staleness_by_step and clip_by_sign.
-- Empty: no step has been committed.
-- Key: step
with ages as (
    select step, case when count(d) > 0 then sum(d)::double / count(d) end as d_mean
    from staleness
    group by step
),

final as (
    select
        s.step,
        s.new_version,
        c.groups,
        c.groups_flat,
        c.score_mean,
        c.executions_valid,
        c.executions_missing,
        s.executions as executions_trained,
        s.targets,
        s.tokens,
        s.loss,
        s.gradient_norm,
        a.d_mean,
        s.committed_us
    from steps as s
    left join score_by_step as c on c.step = s.step
    left join ages as a on a.step = s.step
    where s.new_version is not null
)

select * from final
